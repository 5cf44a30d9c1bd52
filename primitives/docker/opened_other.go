//go:build !linux

package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// openSource finds a file or folder that is no symbolic link. Its name stands for it: the
// engine has another kernel, and so nothing that could be compared.
func openSource(name string) (opened, error) {
	o, err := findPath(name)
	if errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("make it first: %w", err)
	}
	return o, err
}

func findPath(name string) (opened, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return opened{}, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return opened{}, errLink(name)
	}
	real, err := filepath.EvalSymlinks(name)
	return opened{name: real, info: info}, err
}

func (o opened) child(name string) (opened, error) { return findPath(filepath.Join(o.name, name)) }

func (o opened) path() string { return o.name }

func (o opened) identity() (dev, ino uint64) { return 0, 0 }
