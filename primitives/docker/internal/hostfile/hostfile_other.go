//go:build !linux

package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Open finds a file or folder that is not a symbolic link, and keeps its name: the engine has
// another kernel, so there are no numbers to compare.
func Open(name string) (File, error) {
	o, err := findPath(name)
	if errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("%w; make it first", err)
	}
	return o, err
}

func findPath(name string) (File, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return File{}, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return File{}, errLink(name)
	}
	real, err := filepath.EvalSymlinks(name)
	return File{Name: real, Info: info}, err
}

// Child finds an entry of a folder, which must not be a symbolic link.
func (f *File) Child(name string) (File, error) { return findPath(filepath.Join(f.Name, name)) }

// Path returns the name.
func (f *File) Path() string { return f.Name }

// Identity returns zeros: there are no numbers to compare.
func (f *File) Identity() (dev, ino uint64) { return 0, 0 }
