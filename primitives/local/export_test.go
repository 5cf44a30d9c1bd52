package local

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
)

// GrowPipe gives a pipe the large buffer, as a baseline for benchmarks.
func GrowPipe(fd int) error { return growPipe(fd, largePipe) }

// NewSweeping makes a sandbox without control groups, as on systems that have none.
func NewSweeping(ctx context.Context, cfg Config) (*Sandbox, error) {
	s, err := New(ctx, cfg)
	if err != nil || s.group == nil {
		return s, err
	}
	s.group.Close()
	err = errors.Join(cgroup.Remove(s.group.Path()), func() error {
		s.st.Group, s.st.NoGroup = "", "turned off"
		return writeJSON(s.st.file(stateFile), s.st)
	}())
	s.group = nil
	s.caps = s.findCapabilities()
	return s, err
}

// HalfCopy makes what a program leaves behind that dies while it copies the sandbox, and returns
// the ID of the copy.
func HalfCopy(t testing.TB, s *Sandbox) string {
	t.Helper()
	st := *s.st
	st.own(newID())
	st.Session = filepath.Join(filepath.Dir(s.paths.Session), st.ID)
	st.Group, st.Copying, st.Owner.Start = "", true, 1 // not the start time of this program
	if err := errors.Join(st.announce(), s.copyFolders(t.Context(), &st)); err != nil {
		t.Fatal(err)
	}
	return st.ID
}

// RootFolders returns the root folders that List, Attach and GC read.
var RootFolders = rootFolders

// CloseEachOnExec is closeOnExec for kernels without a system call for it.
func CloseEachOnExec() error { return closeEachOnExec() }

// ExplainStart returns the error of a command of the sandbox that the kernel did not start.
func ExplainStart(s *Sandbox, err error) error {
	return s.explain(&spawnSpec{path: "/bin/sh", dir: s.paths.Workspace}, err)
}
