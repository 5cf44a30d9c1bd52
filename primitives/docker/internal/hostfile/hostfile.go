// Package hostfile holds files and folders of this machine open, so that they stay the same when
// their names change.
package hostfile

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// File is a file or folder. On Linux it is open, and so stays the same when its name changes; on
// other systems only its name is kept.
type File struct {
	Name string      // its real path, when it was opened
	Info fs.FileInfo // nil for a file of another machine
	file *os.File    // nil where descriptors cannot be kept, for another machine, and when closed
}

// errLink returns the error for a name that is a symbolic link.
func errLink(name string) error {
	return fmt.Errorf("%w: %s is a symbolic link, which may lead elsewhere tomorrow; name the folder itself", fs.ErrInvalid, name)
}

// IsOpen reports whether Path and Identity are those of the file itself.
func (f *File) IsOpen() bool { return f.file != nil }

// Close closes the file. Its Name and Info stay.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// Within reports whether a clean path is dir or below it.
func Within(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}
