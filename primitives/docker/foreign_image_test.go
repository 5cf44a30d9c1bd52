package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// A container has the labels of its image, which may come from anyone, or from a sandbox.
func TestWhatTheLabelsOfAnImageSayIsNotTakenForTheSandboxs(t *testing.T) {
	t.Parallel()
	for _, label := range []string{
		"dev.agentenv.link=/tmp", "dev.agentenv.mounted=x",
	} {
		t.Run(label, func(t *testing.T) {
			img := committed(t, testdocker.Busybox(t), "LABEL "+label) // its removal is checked
			s := open(t, config(t, img))
			again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
			if err != nil {
				t.Fatal(err)
			}
			if got := output(t, again, "echo", "hi"); got != "hi\n" {
				t.Errorf("the sandbox says %q", got)
			}
			if _, err := again.Terminate(t.Context()); err != nil {
				t.Error(err)
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestARunnerThatIsNoProgramIsNotAMissingEngine(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"empty": "", "short": "host\n", "text": strings.Repeat("text\n", 100)} {
		cfg := config(t, testdocker.Busybox(t))
		cfg.Runner = filepath.Join(t.TempDir(), "runner")
		if err := os.WriteFile(cfg.Runner, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := docker.New(t.Context(), cfg); !errors.Is(err, fs.ErrInvalid) || errors.Is(err, primitives.ErrUnavailable) || !strings.Contains(err.Error(), "runner: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestASnapshotIsNotStartedAsAnotherUser(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	img, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := testdocker.Engine(t).ImageRemove(context.WithoutCancel(t.Context()), img, image.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	cfg := config(t, img)
	cfg.User = "1234"
	if _, err := docker.New(t.Context(), cfg); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "user: the snapshot's files belong") {
		t.Errorf("New: %v", err)
	}
}

func TestAnImageThatHasTheSandboxsNameIsSaidToBeWrong(t *testing.T) {
	t.Parallel()
	eng := testdocker.Engine(t)
	for _, script := range []string{"touch /agentenv", "mkdir -p /agentenv/envrunner"} {
		made, err := eng.ContainerCreate(t.Context(), &container.Config{Image: testdocker.Busybox(t), Cmd: []string{"sh", "-c", script}, Labels: testdocker.Labels()}, nil, nil, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		exited, failed := eng.ContainerWait(t.Context(), made.ID, container.WaitConditionNextExit)
		if err := eng.ContainerStart(t.Context(), made.ID, container.StartOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-exited:
		case err := <-failed:
			t.Fatal(err)
		}
		img, err := eng.ContainerCommit(t.Context(), made.ID, container.CommitOptions{})
		if err := errors.Join(err, eng.ContainerRemove(t.Context(), made.ID, container.RemoveOptions{})); err != nil {
			t.Fatal(err)
		}
		if _, err := docker.New(t.Context(), config(t, img.ID)); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "image: it has something at /agentenv") {
			t.Errorf("%s: %v", script, err)
		}
		if _, err := eng.ImageRemove(t.Context(), img.ID, image.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestANetworkThatDoesNotExistIsNamed(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Network = "nowhere"
	if _, err := docker.New(t.Context(), cfg); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "choose one that 'docker network ls' shows") || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("New: %v", err)
	}
}
