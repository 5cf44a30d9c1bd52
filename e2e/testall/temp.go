package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// enoughMemory is what the temporary files of the tests may take, with room to spare.
const enoughMemory = 8 << 30

// makeTemp makes a folder for the temporary files of the tests, in memory if there is room and root
// runs the tests. The tests make and remove some hundred thousand files. On ext4 without a journal
// making a file takes up to 50 times as long while many were removed in the last minutes, which the
// tests do. What the go command builds stays where it was: it is large and few.
func (r *runner) makeTemp() error {
	// A short name, because the paths of Unix sockets are limited.
	dir, err := os.MkdirTemp("", "t")
	if err != nil {
		return err
	}
	r.temp = dir
	r.env = append(r.env, "TMPDIR="+dir, "GOTMPDIR="+os.TempDir())
	if r.inMemory, err = mountMemory(dir, enoughMemory); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	return os.Chmod(dir, 0o777|os.ModeSticky) // some tests run programs as other users
}

// close removes the folders of the run. It fails if the tests have left temporary files.
func (r *runner) close() error {
	left, err := os.ReadDir(r.temp)
	if len(left) > 0 {
		var names []string
		for _, e := range left {
			names = append(names, e.Name())
		}
		err = errors.Join(err, fmt.Errorf("the tests have left temporary files: %s", strings.Join(names, ", ")))
	}
	if r.inMemory {
		err = errors.Join(err, unmount(r.temp))
	}
	return errors.Join(err, os.RemoveAll(r.temp), os.RemoveAll(r.dir))
}
