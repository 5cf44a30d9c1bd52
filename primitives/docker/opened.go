package docker

import (
	"fmt"
	"io/fs"
	"os"
)

// opened is a file or folder of this machine that stays the same whatever becomes of
// its name.
type opened struct {
	file *os.File    // nil where descriptors cannot be kept, and for an engine elsewhere
	name string      // its real path, when it was opened
	info fs.FileInfo // nil for an engine elsewhere
}

// errLink refuses a name that is a symbolic link.
func errLink(name string) error {
	return fmt.Errorf("%w: %s is a symbolic link, which may lead elsewhere tomorrow; name the folder itself", fs.ErrInvalid, name)
}

func (o opened) close() error {
	if o.file == nil {
		return nil
	}
	return o.file.Close()
}
