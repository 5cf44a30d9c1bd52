package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// imageFor makes an image with a passwd file, whose configuration names a user. It is removed with
// the test.
func imageFor(t *testing.T, name, user string) string {
	t.Helper()
	ref := fmt.Sprintf("%s-%d", name, os.Getpid()) // other runs may use the same engine
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	users := "root:x:0:0:root:/:/bin/sh\n"
	err := errors.Join(
		w.WriteHeader(&tar.Header{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir}),
		w.WriteHeader(&tar.Header{Name: "etc/passwd", Mode: 0o644, Size: int64(len(users))}),
	)
	_, werr := io.WriteString(w, users)
	if err := errors.Join(err, werr, w.Close()); err != nil {
		t.Fatal(err)
	}
	eng := testdocker.Engine(t)
	body, err := eng.ImageImport(t.Context(), image.ImportSource{Source: &archive, SourceName: "-"}, ref, image.ImportOptions{Changes: []string{"USER " + user}})
	if err == nil {
		_, err = io.Copy(io.Discard, body)
		_ = body.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := eng.ImageRemove(context.WithoutCancel(t.Context()), ref, image.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	return ref
}

// TestWhatTheEngineRefusesIsTyped also uses existing users: errors with another cause must not name
// them, even if the container and its files are already gone.
func TestWhatTheEngineRefusesIsTyped(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	dir := t.TempDir()
	action, arch := filepath.Join(dir, "action"), filepath.Join(dir, "arch")
	writeFile(t, action, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mknod"], "action": "SCMP_ACT_REFUSE"}]}`)
	writeFile(t, arch, `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_PDP11"]}`)
	busybox, nobodys := testdocker.Busybox(t), imageFor(t, "agentenv-test-user:nobody", "nosuchuser")
	nobodysGroup := imageFor(t, "agentenv-test-user:group", "root:nosuchgroup")
	user := func(name string) func(*docker.Config) { return func(c *docker.Config) { c.User = name } }
	imageOf := func(ref string) func(*docker.Config) { return func(c *docker.Config) { c.Image = ref } }
	port := func(p docker.Port) func(*docker.Config) {
		return func(c *docker.Config) {
			c.User, c.Network, c.Publish = "tester", "bridge", []docker.Port{{Container: 80}, p}
		}
	}
	for name, c := range map[string]struct {
		change func(*docker.Config)
		want   error
		says   string
	}{
		"a port that is taken":           {port(docker.Port{Container: 81, Host: taken.Addr().(*net.TCPAddr).Port}), fs.ErrExist, "publish[1].host: "},
		"an address of another machine":  {port(docker.Port{Container: 81, HostIP: "203.0.113.7"}), fs.ErrInvalid, "publish[1].host_ip: "},
		"more processes than can be":     {func(c *docker.Config) { c.User, c.Pids = "tester", 1<<40 }, fs.ErrInvalid, "pids: "},
		"a filter with an unknown deed":  {func(c *docker.Config) { c.User, c.Seccomp = "tester", action }, fs.ErrInvalid, "seccomp: "},
		"a filter for another processor": {func(c *docker.Config) { c.User, c.Seccomp = "tester", arch }, fs.ErrInvalid, "seccomp: "},
		"a target below a file": {func(c *docker.Config) {
			c.Mounts = []docker.Mount{{Source: dir, Target: "/etc/passwd/x"}}
		}, fs.ErrInvalid, "/etc/passwd/x"},
		"a user that is not there":              {user("nosuchuser"), primitives.ErrUnknownUser, `user: the image has no "nosuchuser"`},
		"a user that is not there, and a group": {user("nosuchuser:root"), primitives.ErrUnknownUser, `user: the image has no "nosuchuser"`},
		"a group that is not there":             {user("root:nosuchgroup"), primitives.ErrUnknownUser, `user: the image has no group "nosuchgroup"`},
		"such a group of a number":              {user("1000:nosuchgroup"), primitives.ErrUnknownUser, `user: the image has no group "nosuchgroup"`},
		"a number that no user has":             {user("99999999999"), fs.ErrInvalid, "user: "},
		"a user of the image's own":             {imageOf(nobodys), primitives.ErrUnknownUser, `user: the image is set to run as "nosuchuser", which is not in its /etc/passwd`},
		"a group of the image's own":            {imageOf(nobodysGroup), primitives.ErrUnknownUser, `user: the image is set to run as group "nosuchgroup", which is not in its /etc/group`},
	} {
		for kept, keep := range map[string]bool{"": false, ", kept": true} {
			t.Run(name+kept, func(t *testing.T) {
				cfg := config(t, busybox)
				cfg.Keep = keep
				c.change(&cfg)
				s, err := docker.New(t.Context(), cfg)
				if err == nil {
					_, terr := s.Terminate(t.Context())
					t.Fatal("no error", errors.Join(terr, s.Close()))
				}
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
				}
				for _, other := range []error{primitives.ErrUnknownUser, primitives.ErrUnavailable, fs.ErrInvalid} {
					if !errors.Is(c.want, other) && errors.Is(err, other) {
						t.Errorf("%v is also %v", err, other)
					}
				}
			})
		}
	}
}

// A failure to start with an unknown cause counts as one of the engine, whatever user is set.
func TestAFailureToStartThatNothingIsKnownOf(t *testing.T) {
	t.Parallel()
	e := &retouched{answer: func(method, path string, status int, answer map[string]any) {
		if status >= 400 && strings.HasSuffix(path, "/start") {
			answer["message"] = "something else"
		}
	}}
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host = e.serve(t)
	for _, user := range []string{"tester", "nosuchuser"} {
		cfg.User, cfg.Network, cfg.Publish = user, "bridge", []docker.Port{{Container: 80, HostIP: "203.0.113.7"}}
		s, err := docker.New(t.Context(), cfg)
		if err == nil {
			t.Fatal("no error", s.Close())
		}
		if !errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, primitives.ErrUnknownUser) || errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s: got %v", user, err)
		}
	}
}
