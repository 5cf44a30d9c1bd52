package ssh_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/test/testssh"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
)

// TestAKeptSandboxOutlivesItsGuest checks that a kept sandbox keeps its files until it is
// removed, even if its machine restarts or its guest is killed.
func TestAKeptSandboxOutlivesItsGuest(t *testing.T) {
	testssh.Start(t)
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "terminated": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			ctx, cfg := t.Context(), config(t, t.TempDir())
			cfg.Keep = true
			s, err := ssh.New(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			output(t, s, "sh", "-c", "echo mine >file")
			endGuest(t, s, signal)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if removed, err := cfg.GC(ctx, primitives.GCOptions{NoGrace: true}); err != nil || len(removed) > 0 {
				t.Errorf("GC: %+v, %v", removed, err)
			}
			list, err := cfg.List(ctx)
			if err != nil || len(list) != 1 || list[0].ID != s.ID() || !list[0].Kept || !list[0].Owned || list[0].Orphan ||
				list[0].Status != primitives.StatusLost {
				t.Fatalf("List: %+v, %v", list, err)
			}
			attached, err := ssh.Attach(ctx, cfg, s.ID())
			if err != nil {
				t.Fatal(err)
			}
			if got := output(t, attached, "cat", "file"); got != "mine" {
				t.Errorf("the file holds %q", got)
			}
			if err := attached.Close(); err != nil {
				t.Error(err)
			}
			if err := cfg.Remove(ctx, s.ID()); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(s.Paths().Session); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left of it: %v", err)
			}
		})
	}
}

// endGuest sends a signal to the guest that created a sandbox, and waits for it to exit.
func endGuest(t *testing.T, s *guest.Sandbox, signal syscall.Signal) {
	t.Helper()
	var state struct{ Owner struct{ PID int } }
	data, err := os.ReadFile(filepath.Join(s.Paths().App, "sandbox.json"))
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(state.Owner.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Minute.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			if err = errors.Join(err, unix.Close(fd)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}
