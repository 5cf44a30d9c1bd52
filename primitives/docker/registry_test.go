package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testnet"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// mockRegistry implements as much of an image registry as an engine needs to pull: it has one
// image, under any tag except "missing". The engine accepts registries on the loopback device
// without TLS.
type mockRegistry struct {
	host     string // of its address
	blobs    map[string][]byte
	manifest []byte

	mu       sync.Mutex
	password string        // of the user "me"; empty admits every user
	stall    chan struct{} // layers wait until it is closed; nil does not wait
	pulls    int           // how often a manifest was fetched
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func startRegistry(t *testing.T) *mockRegistry {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	// New content, so that the engine does not have it.
	content := fmt.Sprint(time.Now().UnixNano(), os.Getpid())
	err := w.WriteHeader(&tar.Header{Name: "made", Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Labels": testdocker.Labels()}, // to find images that are left
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const docker = "application/vnd.docker."
	describe := func(kind string, b []byte) map[string]any {
		return map[string]any{"mediaType": docker + kind, "size": len(b), "digest": digest(b)}
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": docker + "distribution.manifest.v2+json",
		"config": describe("container.image.v1+json", config),
		"layers": []any{describe("image.rootfs.diff.tar", layer.Bytes())},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &mockRegistry{
		host: l.Addr().String(), manifest: manifest,
		blobs: map[string][]byte{digest(config): config, digest(layer.Bytes()): layer.Bytes()},
	}
	t.Cleanup(func() { forgetImages(t, r.host) })
	server := &http.Server{Handler: r}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return r
}

func (r *mockRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	password, stall := r.password, r.stall
	if strings.Contains(req.URL.Path, "/manifests/") {
		r.pulls++
	}
	r.mu.Unlock()
	if user, given, _ := req.BasicAuth(); password != "" && (user != "me" || given != password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="mock"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return
	}
	kind, name := filepath.Base(filepath.Dir(req.URL.Path)), filepath.Base(req.URL.Path)
	switch blob, ok := r.blobs[name]; {
	case req.URL.Path == "/v2/":
	case kind == "manifests" && name != "missing":
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
		w.Header().Set("Docker-Content-Digest", digest(r.manifest))
		_, _ = w.Write(r.manifest)
	case kind == "blobs" && ok:
		if stall != nil {
			select {
			case <-stall:
			case <-req.Context().Done():
			}
		}
		_, _ = w.Write(blob)
	default:
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
	}
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"errors": [{"code": %q, "message": "refused", "detail": {}}]}`, code)
}

func (r *mockRegistry) protect(password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.password = password
}

func (r *mockRegistry) fetched() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pulls
}

// forgetImages removes the images of a registry from the engine.
func forgetImages(t *testing.T, registry string) {
	t.Helper()
	eng, ctx := testdocker.Engine(t), context.WithoutCancel(t.Context())
	found, err := eng.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("reference", registry+"/*/*"))})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range found {
		if _, err := eng.ImageRemove(ctx, i.ID, image.RemoveOptions{Force: true, PruneChildren: true}); err != nil {
			t.Error(err)
		}
	}
}

// pullOnly makes a sandbox of an image and ends it.
func pullOnly(t *testing.T, cfg docker.Config) error {
	t.Helper()
	s, err := docker.New(t.Context(), cfg)
	if err != nil {
		return err
	}
	_, err = s.Terminate(t.Context())
	return errors.Join(err, s.Close())
}

func TestImagesArePulledByTheirPolicy(t *testing.T) {
	r := startRegistry(t)
	testdocker.CleanEnv(t)
	cfg := config(t, r.host+"/some/image:v1")
	var told []string
	cfg.Progress = func(s string) { told = append(told, s) }

	for _, c := range []struct {
		name    string
		policy  docker.Pull
		fetches int
		want    error
	}{
		{"never, and it is not there", docker.PullNever, 0, fs.ErrNotExist},
		{"missing", docker.PullMissing, 1, nil},
		{"missing, but it is there", docker.PullMissing, 0, nil},
		{"always", docker.PullAlways, 1, nil},
		{"never, but it is there", docker.PullNever, 0, nil},
	} {
		before := r.fetched()
		cfg.Pull = c.policy
		if err := pullOnly(t, cfg); !errors.Is(err, c.want) {
			t.Fatalf("%s: got %v, want %v", c.name, err, c.want)
		}
		if got := min(1, r.fetched()-before); got != c.fetches {
			t.Errorf("%s: fetched %d times", c.name, got)
		}
		if c.name == "missing" && (!slices.Contains(told, "fetching the image "+cfg.Image) || !slices.Contains(told, "fetched the image "+cfg.Image)) {
			t.Errorf("told %q", told)
		}
	}

	cfg.Image = r.host + "/some/image:missing"
	for _, policy := range []docker.Pull{docker.PullMissing, docker.PullAlways} {
		cfg.Pull = policy
		if err := pullOnly(t, cfg); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			t.Errorf("an unknown tag, %s: %v", policy, err)
		}
	}
	cfg.Image = testnet.FreeAddress(t) + "/some/image:v1"
	if err := pullOnly(t, cfg); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("no registry: %v", err)
	}
}

func TestCredentialsAreThoseOfTheDockerCommand(t *testing.T) {
	const password = "pass:word-that-is-never-told"
	r := startRegistry(t)
	r.protect(password)
	cfg := config(t, r.host+"/private/image:v1")
	cfg.Pull = docker.PullAlways
	encoded := func(password string) string {
		return base64.StdEncoding.EncodeToString([]byte("me:" + password))
	}
	helper := func(t *testing.T, body string) {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "docker-credential-mock"), "#!/bin/sh\n"+body)
		if err := os.Chmod(filepath.Join(dir, "docker-credential-mock"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	}
	answer := fmt.Sprintf(`read server; test "$1 $server" = "get %s" && echo '{"Username": "me", "Secret": "%s"}'`, r.host, password)

	for name, c := range map[string]struct {
		config string
		helper string
		want   error
	}{
		"none":                     {`{}`, "", fs.ErrPermission},
		"in the file":              {fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, r.host, encoded(password)), "", nil},
		"by the whole address":     {fmt.Sprintf(`{"auths": {"http://%s/v2/": {"auth": %q}}}`, r.host, encoded(password)), "", nil},
		"wrong ones":               {fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, r.host, encoded(password+"x")), "", fs.ErrPermission},
		"damaged ones":             {fmt.Sprintf(`{"auths": {%q: {"auth": "%s?"}}}`, r.host, password), "", fs.ErrPermission},
		"of a store":               {`{"credsStore": "mock"}`, answer, nil},
		"of a helper":              {fmt.Sprintf(`{"credsStore": "other", "credHelpers": {%q: "mock"}}`, r.host), answer, nil},
		"of a helper that fails":   {`{"credsStore": "mock"}`, "echo " + password + "; echo " + password + " >&2; exit 1", fs.ErrPermission},
		"of a helper that babbles": {`{"credsStore": "mock"}`, "echo " + password, fs.ErrPermission},
		"of a missing helper":      {`{"credsStore": "nosuch"}`, "", fs.ErrPermission},
		"of a helper elsewhere":    {`{"credsStore": "../../bin/sh"}`, "", fs.ErrPermission},
	} {
		t.Run(name, func(t *testing.T) {
			writeFile(t, filepath.Join(testdocker.CleanEnv(t), "config.json"), c.config)
			if c.helper != "" {
				helper(t, c.helper)
			}
			err := pullOnly(t, cfg)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if err == nil {
				return
			}
			if strings.Contains(err.Error(), password) || strings.Contains(err.Error(), encoded(password)) {
				t.Errorf("the error tells the secret: %v", err)
			}
			if !strings.Contains(err.Error(), "docker login "+r.host) {
				t.Errorf("no advice in %v", err)
			}
		})
	}
}

// Like for the docker command, DOCKER_AUTH_CONFIG takes precedence over the file, and damaged
// entries in it are ignored.
func TestCredentialsOfTheVariable(t *testing.T) {
	const password = "pass:word-that-is-never-told"
	r := startRegistry(t)
	r.protect(password)
	cfg := config(t, r.host+"/private/image:v1")
	cfg.Pull = docker.PullAlways
	auths := func(password string) string {
		return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, r.host, base64.StdEncoding.EncodeToString([]byte("me:"+password)))
	}
	for name, c := range map[string]struct{ variable, file string }{
		"first":   {auths(password), auths("wrong")},
		"damaged": {`{"auths": ` + password, auths(password)},
		"others":  {`{"auths": {"other.example": {"auth": "bWU6eA=="}}}`, auths(password)},
	} {
		t.Run(name, func(t *testing.T) {
			writeFile(t, filepath.Join(testdocker.CleanEnv(t), "config.json"), c.file)
			t.Setenv("DOCKER_AUTH_CONFIG", c.variable)
			if err := pullOnly(t, cfg); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAPullThatIsCancelledEndsAtOnce(t *testing.T) {
	r := startRegistry(t)
	testdocker.CleanEnv(t)
	r.mu.Lock()
	r.stall = make(chan struct{}) // never closed: the engine must not get the layer
	r.mu.Unlock()
	cfg := config(t, r.host+"/slow/image:v1")
	cfg.Pull = docker.PullMissing
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for r.fetched() == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel()
	}()
	if _, err := docker.New(ctx, cfg); !errors.Is(err, context.Canceled) || errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := testdocker.Engine(t).ImageInspect(t.Context(), cfg.Image); err == nil {
		t.Error("the image is there")
	}
}
