package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// closed is a sandbox whose user may not read one of its folders.
type closed struct {
	*local.Sandbox
	dir string
}

func (c *closed) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	if c.dir != "" && opts.Strict {
		return nil, fmt.Errorf("%s: %w", c.dir, fs.ErrPermission)
	}
	infos, err := c.Sandbox.List(ctx, dir, opts)
	var seen []primitives.FileInfo
	for _, info := range infos {
		if c.dir == "" || filepath.Dir(info.Path) != c.dir {
			seen = append(seen, info)
		}
	}
	return seen, err
}

// What cannot be read is not deleted: Apply would delete it in the user's folder.
func TestFilesThatCannotBeReadAreNoChange(t *testing.T) {
	folder := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(folder, "keys"), 0o755), os.WriteFile(filepath.Join(folder, "keys/a"), []byte("mine"), 0o644)); err != nil {
		t.Fatal(err)
	}
	p, err := local.New(t.Context(), local.Config{Root: rootOf(sandbox(t))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Terminate(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	c := &closed{Sandbox: p}
	from := Folder{Path: folder}
	env := newOver(t, c, Config{Workspace: []Source{{Folder: &from}}})
	if changes, err := env.Changes(t.Context()); err != nil || len(changes) > 0 {
		t.Fatalf("%v, %v", changes, err)
	}
	c.dir = "keys"
	if changes, err := env.Changes(t.Context()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("changes %v, %v", changes, err)
	}
	if made, err := env.Apply(t.Context(), from); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("applied %v, %v", made, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "keys/a")); err != nil {
		t.Error(err)
	}
}
