package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
)

// foreign loads an image that says it is for another platform, with nothing in it
// that runs.
func foreign(t *testing.T) string {
	t.Helper()
	ref := fmt.Sprintf("agentenv-test-foreign:s390x-%d", os.Getpid()) // others may run these tests on the same engine
	layer := archive(t, map[string]string{"etc/platform": "s390x"})
	config := fmt.Sprintf(`{"architecture":"s390x","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, sha256.Sum256(layer))
	whole := archive(t, map[string]string{
		"manifest.json": fmt.Sprintf(`[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, ref),
		"config.json":   config, "layer.tar": string(layer),
	})
	eng := testdocker.Engine(t)
	loaded, err := eng.ImageLoad(t.Context(), bytes.NewReader(whole))
	if err == nil {
		_, err = io.Copy(io.Discard, loaded.Body)
		_ = loaded.Body.Close()
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

// archive packs files.
func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAGuestForTheEngineRunsInAnImageForAnotherPlatform(t *testing.T) {
	s := open(t, config(t, foreign(t)))
	c := s.Capabilities()
	if !c.Watch || c.Arch != "s390x" {
		t.Errorf("capabilities %+v, want a guest's, and the image's architecture", c)
	}
	if err := s.Mkdir(t.Context(), "made", 0); err != nil {
		t.Error(err)
	}
}

func TestARunnerForAnotherPlatformIsDoneWithout(t *testing.T) {
	program, err := os.ReadFile(testdocker.Runner(t))
	if err != nil {
		t.Fatal(err)
	}
	const machine, s390 = 18, 22 // of the ELF header
	program[machine] = s390
	cfg := config(t, testdocker.Busybox(t))
	cfg.Runner = filepath.Join(t.TempDir(), "envrunner")
	if err := os.WriteFile(cfg.Runner, program, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	if c := s.Capabilities(); c.Watch || c.Durable || c.Note == "" {
		t.Errorf("capabilities %+v, want those without a guest, and why", c)
	}
	if got := output(t, s, "echo", "it works"); got != "it works\n" {
		t.Errorf("got %q", got)
	}
}

// TestWithoutAGuestInDebian does what depends on the shell and the commands of the
// image, as a user without a name on a read-only root.
func TestWithoutAGuestInDebian(t *testing.T) {
	cfg := plainConfig(t)
	cfg.Image, cfg.User, cfg.ReadOnly = testdocker.Debian(t), "4242:4242", true
	s := open(t, cfg)
	if got := output(t, s, "printf", "%s|%s", "\xc3\x28'", "two\nlines\n"); got != "\xc3\x28'|two\nlines\n" {
		t.Errorf("arguments arrive as %q", got)
	}
	err := s.WriteFile(t.Context(), "a\nb/café", strings.NewReader(strings.Repeat("x", 600_000)), primitives.WriteOptions{Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	output(t, s, "ln", "-s", "caf\xc3\xa9", "a\nb/link")
	infos, err := s.List(t.Context(), ".", primitives.ListOptions{Depth: -1})
	if err != nil || len(infos) != 3 || infos[1].Size != 600_000 || infos[1].UID != 4242 || infos[2].Target != "café" {
		t.Errorf("list %+v, %v", infos, err)
	}
	if b, err := primitives.ReadFile(t.Context(), s, "a\nb/link", 0); err != nil || len(b) != 600_000 {
		t.Errorf("read %d bytes, %v", len(b), err)
	}
	res, err := primitives.Run(t.Context(), s, primitives.Command{
		Args: []string{"sh", "-c", "setsid sleep 1000 & sleep 1000"}, Timeout: time.Second, Grace: -1,
	}, primitives.RunOptions{})
	if err != nil || res.Status.Reason != primitives.ReasonTimeout {
		t.Errorf("status %+v, %v", res.Status, err)
	}
	outlivesCommands(t, s)
	// Of the sleeping processes only that of the first process stays; what was killed is
	// there until that one looks.
	await(t, func() bool {
		return strings.Count(string(script(t, s, "cat /proc/[0-9]*/comm").Stdout), "sleep") == 1
	})
}

func TestAStatusIsKnownWhileOthersFloodTheOutput(t *testing.T) {
	s := open(t, plainConfig(t))
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "echo first; yes & exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	if status, err := p.Wait(t.Context()); err != nil || status != (primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited}) {
		t.Errorf("status %+v, %v", status, err)
	}
	b := make([]byte, len("first\n"))
	if _, err := io.ReadFull(p.Stdout(), b); err != nil || string(b) != "first\n" {
		t.Errorf("read %q, %v, want what the command has printed", b, err)
	}
}

// BenchmarkExecWithoutAGuest compares a command with the same calls of the engine's
// client.
func BenchmarkExecWithoutAGuest(b *testing.B) {
	s, err := newPlain(b)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("sandbox", func(b *testing.B) {
		for b.Loop() {
			if _, err := primitives.Run(b.Context(), s, primitives.Command{Args: []string{"true"}}, primitives.RunOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	eng := testdocker.Engine(b)
	b.Run("client", func(b *testing.B) {
		for b.Loop() {
			made, err := eng.ContainerExecCreate(b.Context(), s.ID(), container.ExecOptions{Cmd: []string{"true"}, AttachStdout: true, AttachStderr: true})
			if err != nil {
				b.Fatal(err)
			}
			conn, err := eng.ContainerExecAttach(b.Context(), made.ID, container.ExecAttachOptions{})
			if err != nil {
				b.Fatal(err)
			}
			_, err = stdcopy.StdCopy(io.Discard, io.Discard, conn.Reader)
			conn.Close()
			for running := true; running && err == nil; {
				var found container.ExecInspect
				found, err = eng.ContainerExecInspect(b.Context(), made.ID)
				running = found.Running
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
