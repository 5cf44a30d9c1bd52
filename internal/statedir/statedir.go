// Package statedir opens the state folder of this user's programs: agentenv in XDG_STATE_HOME,
// or in ~/.local/state.
//
// A [Book] has its lock beside it. The folder "locks" has those of names and of records
// (environment/internal/kept), the folder "credentials" that of the store. Programs replace each
// record's file as a whole.
package statedir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/agentenv-dev/agentenv/internal/input"
)

// Path returns the path of the state folder, which may not exist.
func Path() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "agentenv"), nil
}

// Open opens a subfolder, and creates it if it is missing. A folder that other users can read
// or change is fs.ErrPermission. The caller must close it.
func Open(name string) (*os.Root, error) {
	state, err := Path()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(state, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil {
		err = Private(dir, info)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// Private returns fs.ErrPermission for a file that another user owns, or that others can
// access.
func Private(name string, info fs.FileInfo) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: %w: it is not yours alone; chmod go= %[1]s", name, fs.ErrPermission)
	}
	return nil
}

// ReadPrivate reads a file that only this user can access. More than limit bytes are
// primitives.ErrLimit.
func ReadPrivate(name string, limit int64) ([]byte, error) {
	f, err := input.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err == nil {
		err = Private(name, info)
	}
	if err != nil {
		return nil, err
	}
	return input.ReadAll(f, name, limit)
}

// Prune removes the oldest files of a folder until at most the given numbers of files and bytes
// remain.
func Prune(root *os.Root, files int, bytes int64) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	infos := make([]fs.FileInfo, 0, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // otherwise another program has removed it
			infos = append(infos, info)
			bytes -= info.Size()
		}
	}
	slices.SortFunc(infos, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for i := 0; i < len(infos) && (len(infos)-i > files || bytes < 0); i++ {
		if err := root.Remove(infos[i].Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		bytes += infos[i].Size()
	}
	return nil
}
