package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// foreign loads an image for another platform that holds no programs.
func foreign(t *testing.T) string {
	t.Helper()
	ref := fmt.Sprintf("agentenv-test-foreign:s390x-%d", os.Getpid()) // unique for this run
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

// archive returns a tar archive of files.
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
	t.Parallel()
	s := open(t, config(t, foreign(t)))
	c := s.Capabilities()
	if c.Arch != "s390x" {
		t.Errorf("capabilities %+v, want the image's architecture", c)
	}
	if err := s.Mkdir(t.Context(), "made", 0); err != nil {
		t.Error(err)
	}
}

func TestARunnerForAnotherPlatformIsUnsupported(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile(testdocker.Runner(t))
	if err != nil {
		t.Fatal(err)
	}
	const machine, s390 = 18, 22 // offset and value of e_machine in the ELF header
	program[machine] = s390
	cfg := config(t, testdocker.Busybox(t))
	cfg.Runner = filepath.Join(t.TempDir(), "envrunner")
	if err := os.WriteFile(cfg.Runner, program, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := docker.New(t.Context(), cfg)
	if err == nil {
		_, terr := s.Terminate(t.Context())
		t.Fatal("no error", errors.Join(terr, s.Close()))
	}
	var where *primitives.Error
	if !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &where) || !strings.Contains(err.Error(), "s390x") {
		t.Errorf("got %v, want errors.ErrUnsupported that names the runner's platform", err)
	}
}
