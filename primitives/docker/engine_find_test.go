package docker_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func TestTheEngineIsTheOneThatTheDockerCommandFinds(t *testing.T) {
	real := testdocker.Engine(t).DaemonHost()
	const nowhere = "unix:///no/such.sock"
	for name, c := range map[string]struct {
		host, variable, context, current string
		want                             error
	}{
		"the default":                           {"", "", "", "", nil},
		"by the configuration":                  {nowhere, "", "", "", primitives.ErrUnavailable},
		"the configuration before the variable": {real, nowhere, "", "", nil},
		"by the variable":                       {"", nowhere, "", "", primitives.ErrUnavailable},
		"the variable before contexts":          {"", real, "nowhere", "nowhere", nil},
		"by a context":                          {"", "", "nowhere", "", primitives.ErrUnavailable},
		"the chosen context before the current": {"", "", "real", "nowhere", nil},
		"by the current context":                {"", "", "", "nowhere", primitives.ErrUnavailable},
		"the context that is none":              {"", "", "default", "nowhere", nil},
		"a context that is not there":           {"", "", "other", "", fs.ErrNotExist},
		"a context that is damaged":             {"", "", "damaged", "", fs.ErrInvalid},
		"a context without an address":          {"", "", "empty", "", fs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			dir := cleanEngineEnv(t)
			writeContext(t, dir, "real", map[string]any{"Host": real})
			writeContext(t, dir, "nowhere", map[string]any{"Host": nowhere})
			writeContext(t, dir, "empty", map[string]any{})
			damaged := filepath.Dir(filepath.Dir(writeContext(t, dir, "damaged", nil)))
			writeFile(t, filepath.Join(dir, "contexts", "meta", filepath.Base(damaged), "meta.json"), "{")
			writeFile(t, filepath.Join(dir, "config.json"), `{"currentContext": "`+c.current+`"}`)
			t.Setenv("DOCKER_HOST", c.variable)
			t.Setenv("DOCKER_CONTEXT", c.context)
			if _, err := docker.List(t.Context(), docker.Config{Host: c.host}); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	t.Run("a damaged configuration", func(t *testing.T) {
		writeFile(t, filepath.Join(cleanEngineEnv(t), "config.json"), "{")
		if _, err := docker.List(t.Context(), docker.Config{}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAnAPIVersionThatCannotBeIsNamed(t *testing.T) {
	for _, version := range []string{"abc", "1", "1.", "1.41.2", "1.99", "1.1"} {
		t.Run(version, func(t *testing.T) {
			t.Setenv("DOCKER_API_VERSION", version)
			_, err := docker.List(t.Context(), docker.Config{})
			if !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "DOCKER_API_VERSION") || !strings.Contains(err.Error(), "unset ") {
				t.Errorf("got %v", err)
			}
		})
	}
	ping, err := testdocker.Engine(t).Ping(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_API_VERSION", ping.APIVersion)
	if _, err := docker.List(t.Context(), docker.Config{}); err != nil {
		t.Error(err)
	}
}

// newerEngine is a mock of an engine of a newer version in front of the real one:
// it speaks a newer version of the API only and leaves out what that has dropped.
type newerEngine struct {
	version string

	mu    sync.Mutex
	paths []string
}

// drop takes the fields out of an answer that newer versions do not have.
func drop(answer any) {
	switch answer := answer.(type) {
	case []any:
		for _, one := range answer {
			drop(one)
		}
	case map[string]any:
		settings, _ := answer["NetworkSettings"].(map[string]any)
		for _, name := range []string{
			"VirtualSize", "Container", "ContainerConfig", "DockerVersion", "Parent", // of images
			"MacAddress", "IPAddress", "Gateway", "Bridge", "SandboxKey", // of containers, at the top of their network settings
		} {
			delete(answer, name)
			delete(settings, name)
		}
	}
}

func (e *newerEngine) serve(t *testing.T) (host string) {
	t.Helper()
	proxy := toEngine(t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Path = strings.Replace(r.Out.URL.Path, "/v"+e.version+"/", "/v1.41/", 1)
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Api-Version", e.version)
			if !strings.HasSuffix(r.Request.URL.Path, "/json") || r.StatusCode != http.StatusOK {
				return nil
			}
			var answer any
			if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
				return err
			}
			drop(answer)
			b, err := json.Marshal(answer)
			setBody(r, b)
			return err
		},
	})
	return standIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.paths = append(e.paths, r.URL.Path)
		e.mu.Unlock()
		if r.URL.Path != "/_ping" && !strings.HasPrefix(r.URL.Path, "/v"+e.version+"/") {
			http.Error(w, "only version "+e.version, http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
}

func TestANewerEngine(t *testing.T) {
	e := &newerEngine{version: "1.51"}
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host, cfg.NoSocket = e.serve(t), true
	cfg.Network, cfg.Ports = "bridge", []docker.Port{{Container: 80}}
	s := open(t, cfg)
	if got := output(t, s, "echo", "hello"); got != "hello\n" {
		t.Errorf("got %q", got)
	}
	if ports, err := s.Ports(t.Context()); err != nil || len(ports) != 1 || ports[0].Address == "" {
		t.Errorf("ports: %+v, %v", ports, err)
	}
	second, err := docker.Attach(t.Context(), cfg, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, second, "echo", "again"); got != "again\n" {
		t.Errorf("got %q", got)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.paths, "/v1.51/containers/create") {
		t.Errorf("the engine was asked for %q", e.paths)
	}
}
