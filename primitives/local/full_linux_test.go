package local_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// page is the disk space that one small file takes.
const page = 4096

// fillDisk uses up the disk space except for some pages.
func fillDisk(t *testing.T, dir string, free int64) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := io.Copy(f, endless{})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d bytes: %v", size, err)
	}
	if err := f.Truncate(size&^(page-1) - free*page); err != nil {
		t.Fatal(err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestADurableCommandOnAFullDiskIsNoSpace(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := testneed.SmallDisk(t)
	s := newSandbox(t, local.Config{Root: root, Runner: self})
	started, refused := 0, 0
	for free := range int64(8) {
		fillDisk(t, root, free)
		cmd := shell("exit 3")
		cmd.Durable = true
		p, err := s.Exec(t.Context(), cmd)
		if err == nil {
			started++
			_ = p.Close()
			continue
		}
		refused++
		if !errors.Is(err, primitives.ErrNoSpace) {
			t.Errorf("with room for %d files: %v", free, err)
		}
	}
	if started == 0 || refused < 2 {
		t.Errorf("%d started, %d refused: the disk was not full at every step", started, refused)
	}
}

// A command that goes on although nobody can read its output once held up a program for ever.
func TestADurableCommandThatFillsTheDiskEndsAndSaysSo(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := testneed.SmallDisk(t)
	s := newSandbox(t, local.Config{Root: root, Runner: self})
	for name, then := range map[string]string{
		"prints and waits": "sleep 3600 & while echo 'one more line of output'; do :; done; wait",
		"prints and exits": "head -c 5000 /dev/zero; exit 3",
		"waits":            "trap '' PIPE; head -c 100000 /dev/zero; exec sleep 3600",
	} {
		cmd := shell("until [ -e go ]; do sleep 0.01; done; cat /dev/zero >big 2>/dev/null; " + then)
		cmd.Durable = true
		p := start(t, s, cmd)
		if err := s.WriteFile(t.Context(), "go", strings.NewReader(""), primitives.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
			t.Errorf("%s: its output: %v", name, err)
		}
		if st := wait(t, p); st.Reason != primitives.ReasonNoSpace {
			t.Errorf("%s: it ended with %+v", name, st)
		}
		if err := errors.Join(s.Remove(t.Context(), "big", false), s.Remove(t.Context(), "go", false)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASandboxOnAFullDiskCanBeRemoved(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		by := local.New
		if sweeping {
			by = local.NewSweeping
		}
		root := testneed.SmallDisk(t)
		s := newSandboxBy(t, by, local.Config{Root: root})
		p := start(t, s, shell("sleep 600"))
		other := attach(t, root, s.ID())
		fillDisk(t, s.Paths().Workspace, 0)
		if _, err := s.Terminate(t.Context()); err != nil {
			t.Error(err)
		}
		if st := wait(t, p); st.Reason != primitives.ReasonCancelled {
			t.Errorf("the command ended with %+v", st)
		}
		if _, err := other.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrTerminated) {
			t.Errorf("the other handle says %v", err)
		}
		if !emptied(t, root)() {
			t.Error("something is left")
		}
	})
}

func TestAKeptFolderOnAFullDiskIsOneOfASandboxThatHasEnded(t *testing.T) {
	root := testneed.SmallDisk(t)
	s := newSandbox(t, local.Config{Root: root, LeaveFiles: true})
	fillDisk(t, s.Paths().Workspace, 0)
	if _, err := s.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := local.Attach(t.Context(), local.Config{Root: root}, s.ID()); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("attach: %v", err)
	}
}

func TestGCFreesAFullDisk(t *testing.T) {
	cfg := local.Config{Root: testneed.SmallDisk(t)}
	id := abandon(t, cfg)
	fillDisk(t, filepath.Join(cfg.Root, id, "workspace"), 0)
	if got := gc(t, cfg, primitives.GCOptions{}); got != "" {
		t.Errorf("within its grace GC took %q", got)
	}
	if got := gc(t, cfg, primitives.GCOptions{NoGrace: true}); got != id {
		t.Errorf("GC took %q, want %q", got, id)
	}
	if !emptied(t, cfg.Root)() {
		t.Error("something is left")
	}
}
