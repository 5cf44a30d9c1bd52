// Package testdocker lends tests a Docker engine and images that need no
// registry.
package testdocker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// instruction is what to do when something is missing: tests with Docker are
// never skipped.
const instruction = "run the set-up first, which installs and starts what the tests need: go tool -modfile=tools/go.mod task setup"

// Engine returns a client of the engine that is closed with the test.
func Engine(t testing.TB) *client.Client {
	t.Helper()
	eng, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	})
	return eng
}

func connect() (*client.Client, error) {
	eng, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation(), withoutIdle)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) //nolint:forbidigo // used by TestMain, too, which has no context
	defer cancel()
	if _, err := eng.Ping(ctx); err != nil {
		return nil, fmt.Errorf("no Docker engine answers; %s: %w", instruction, err)
	}
	return eng, nil
}

// withoutIdle keeps connections that idle out of the counts of open files.
func withoutIdle(eng *client.Client) error {
	if t, ok := eng.HTTPClient().Transport.(*http.Transport); ok {
		t.DisableKeepAlives = true
	}
	return nil
}

// Runner returns the path of envrunner for the engine's containers.
func Runner(t testing.TB) string {
	t.Helper()
	file, err := bundle.Path(t.Context(), bundle.Config{OS: "linux"})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Scratch returns the name of an image with nothing in it.
func Scratch(t testing.TB) string {
	t.Helper()
	return ensure(t, "scratch", nil)
}

// Busybox returns the name of an image that holds a static busybox with its
// commands in /bin, /tmp, and the users root and tester (1000:1000).
func Busybox(t testing.TB) string {
	t.Helper()
	binary, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%s: %v", instruction, err)
	}
	entries := []entry{
		{tar.Header{Name: "bin/", Mode: 0o755, Typeflag: tar.TypeDir}, nil},
		{tar.Header{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir}, nil},
		{tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}, nil},
		{tar.Header{Name: "bin/busybox", Mode: 0o755}, binary},
		{tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/:/bin/sh\ntester:x:1000:1000::/tmp:/bin/sh\n")},
		{tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\ntester:x:1000:\n")},
	}
	for _, name := range []string{"sh", "ls", "cat", "echo", "sleep", "true", "id", "env", "kill", "mkdir", "touch", "rm", "wget", "ps", "head"} {
		entries = append(entries, entry{tar.Header{Name: "bin/" + name, Linkname: "busybox", Typeflag: tar.TypeSymlink}, nil})
	}
	return ensure(t, "busybox", entries)
}

// entry is a file of an image.
type entry struct {
	header  tar.Header
	content []byte
}

// ensure imports an image unless the engine has it.
func ensure(t testing.TB, name string, entries []entry) string {
	t.Helper()
	archive := pack(t, entries)
	sum := sha256.Sum256(archive)
	ref := "agentenv-test-" + name + ":" + hex.EncodeToString(sum[:8])
	eng := Engine(t)
	_, err := eng.ImageInspect(t.Context(), ref)
	if err == nil {
		return ref
	}
	if !cerrdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	source := image.ImportSource{Source: bytes.NewReader(archive), SourceName: "-"}
	body, err := eng.ImageImport(t.Context(), source, ref, image.ImportOptions{Changes: []string{"ENV IMAGE_MARK=from-image"}})
	if err == nil {
		_, err = io.Copy(io.Discard, body)
		_ = body.Close()
	}
	if err != nil {
		t.Fatalf("import the image %s: %v", ref, err)
	}
	return ref
}

func pack(t testing.TB, entries []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.header.Size = int64(len(e.content))
		if err := w.WriteHeader(&e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Containers of tests carry this label. Its value stands in the environment, so
// that programs which a test starts use the same.
const (
	runLabel    = "agentenv-test-run"
	runVariable = "AGENTENV_TEST_RUN"
)

// Labels mark what belongs to this run of the tests.
func Labels() map[string]string { return map[string]string{runLabel: os.Getenv(runVariable)} }

// Main runs the tests of a package and returns the status to exit with. It fails
// if a container of theirs is left afterwards.
func Main(m *testing.M) int {
	if os.Getenv(runVariable) != "" {
		return m.Run() // a program that a test started
	}
	if err := os.Setenv(runVariable, fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := leftovers(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		return 1
	}
	return code
}

// leftovers waits until there are no containers of this run and else removes
// them.
func leftovers() error {
	eng, err := connect()
	if err != nil {
		return err
	}
	defer func() { _ = eng.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) //nolint:forbidigo // TestMain has no context
	defer cancel()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := eng.ContainerList(ctx, container.ListOptions{
			All: true, Filters: filters.NewArgs(filters.Arg("label", runLabel+"="+os.Getenv(runVariable))),
		})
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-tick.C:
			continue
		case <-patience.C:
		}
		for _, c := range left {
			err = fmt.Errorf("container %s (%s) was left, %s", c.Names, c.Image, c.Status)
			if rerr := eng.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}); rerr != nil {
				err = fmt.Errorf("%w, and could not be removed: %w", err, rerr)
			}
		}
		return err
	}
}
