package local_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func write(t *testing.T, s primitives.EnvironmentPrimitive, name, content string) {
	t.Helper()
	if err := s.WriteFile(t.Context(), name, strings.NewReader(content), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, s primitives.EnvironmentPrimitive, name string) string {
	t.Helper()
	b, err := primitives.ReadFile(t.Context(), s, name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// fork makes n copies that end with the test.
func fork(t *testing.T, s *local.Sandbox, n int) []*local.Sandbox {
	t.Helper()
	made, err := s.Fork(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	copies := make([]*local.Sandbox, n)
	for i, p := range made {
		copies[i] = p.(*local.Sandbox)
		endAfter(t, copies[i])
	}
	return copies
}

func TestACopyOfABoundWorkspaceHasItsOwn(t *testing.T) {
	project := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(project, "f"), []byte("mine"), 0o644),
		os.Symlink(filepath.Join(project, "f"), filepath.Join(project, "link")),
	); err != nil {
		t.Fatal(err)
	}
	s := newSandbox(t, local.Config{Workspace: project, Env: []string{"A=1"}})
	c := fork(t, s, 1)[0]
	if c.Paths() != primitives.PathsIn(c.Paths().Session) {
		t.Errorf("the copy works in %s", c.Paths().Workspace)
	}
	write(t, c, "link", "changed")
	if got := content(t, c, "f"); got != "changed" {
		t.Errorf("the link in the copy does not lead into the copy, which has %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(project, "f")); string(b) != "mine" || err != nil {
		t.Errorf("the project's file: %q, %v", b, err)
	}
	res, err := primitives.Run(t.Context(), c, primitives.Command{Args: []string{"/bin/sh", "-c", "echo $A"}}, primitives.RunOptions{})
	if err != nil || string(res.Stdout) != "1\n" {
		t.Errorf("the copy's environment: %q, %v", res.Stdout, err)
	}
}

func TestAForkThatFailsLeavesNothing(t *testing.T) {
	root := t.TempDir()
	s := newSandbox(t, local.Config{Root: root})
	for i := range 200 {
		write(t, s, fmt.Sprintf("d%d/f", i), "x")
	}
	// Cancel at different moments.
	for _, when := range []int{0, 1, 2} {
		err := forkCancelled(t, s, root, when)
		// On a busy machine Fork may end before it is cancelled.
		for tries := 0; err == nil && tries < 20; tries++ {
			err = forkCancelled(t, s, root, when)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Fork: %v", err)
		}
		entries, err := os.ReadDir(root)
		if err != nil || len(entries) != 1 {
			t.Errorf("left: %v, %v", entries, err)
		}
	}
}

// forkCancelled cancels a fork of four copies when so many of them were begun, and returns its
// error. It ends copies that Fork has made nevertheless.
func forkCancelled(t *testing.T, s *local.Sandbox, root string, when int) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var copies []primitives.EnvironmentPrimitive
	forked := make(chan error, 1)
	go func() {
		var err error
		copies, err = s.Fork(ctx, 4)
		forked <- err
	}()
	for made := 0; made < when && len(forked) == 0; {
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		made = len(entries) - 1
	}
	cancel()
	err := <-forked
	for _, c := range copies {
		_, terr := c.Terminate(t.Context())
		if err := errors.Join(terr, c.Close()); err != nil {
			t.Error(err)
		}
	}
	return err
}

func TestAnAdoptedFolderIsANewSandboxWithTheOldFiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	s, err := local.New(t.Context(), local.Config{Root: root, LeaveFiles: true, Runner: self, Env: []string{"OLD=1"}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, "f", "kept")
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"/bin/true"}, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	durable := p.ID()
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = s.Terminate(t.Context())
	if err := errors.Join(err, p.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := local.Adopt(t.Context(), local.Config{Root: root, Runner: self, Env: []string{"NEW=1"}}, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	endAfter(t, again)
	if again.Paths() != s.Paths() {
		t.Errorf("paths %+v became %+v", s.Paths(), again.Paths())
	}
	res, err := primitives.Run(t.Context(), again, primitives.Command{Args: []string{"/bin/sh", "-c", "echo $OLD$NEW; cat f"}}, primitives.RunOptions{})
	if err != nil || string(res.Stdout) != "1\nkept" {
		t.Errorf("printed %q, %v", res.Stdout, err)
	}
	if _, err := again.Reattach(t.Context(), durable, primitives.Offset{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old durable command: %v", err)
	}
}

func TestAdoptRefusesWhatIsNoSessionFolder(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "half", "app"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"half", "missing", "", "../x", ".", "a/b"} {
		if _, err := local.Adopt(t.Context(), local.Config{Root: root}, id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Adopt %q: %v", id, err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "half", "app")); err != nil {
		t.Errorf("a failed Adopt took away files: %v", err)
	}
}

func TestGCRemovesACopyThatWasNeverCompleted(t *testing.T) {
	root := t.TempDir()
	s := newSandbox(t, local.Config{Root: root})
	write(t, s, "f", "kept")
	half := local.HalfCopy(t, s)
	if found, err := (local.Provider{Root: root}).GC(t.Context(), primitives.GCOptions{}); err != nil || len(found) != 1 || found[0].ID != half {
		t.Errorf("removed %+v, %v; want the copy %s", found, err, half)
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 || content(t, s, "f") != "kept" {
		t.Errorf("left: %v, %v", entries, err)
	}
}
