package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a file or folder that is not a symbolic link. It follows links in parent folders; Name
// is the path of the opened file.
func Open(name string) (File, error) {
	o, err := openPath(unix.AT_FDCWD, name, name)
	if errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("%w; make it first", err)
	}
	if err != nil {
		return o, err
	}
	if o.Name, err = os.Readlink(o.Path()); err != nil {
		return File{}, errors.Join(err, o.Close())
	}
	return o, nil
}

// Child opens an entry of a folder, which must not be a symbolic link.
func (f *File) Child(name string) (File, error) {
	return openPath(int(f.file.Fd()), name, f.Name+"/"+name)
}

// Path returns a path to the open file, which is valid until Close.
func (f *File) Path() string { return fmt.Sprintf("/proc/self/fd/%d", f.file.Fd()) }

// Identity returns the device and inode numbers, which the guest sees, too.
func (f *File) Identity() (dev, ino uint64) {
	var st unix.Stat_t
	_ = unix.Fstat(int(f.file.Fd()), &st) // the file is open
	return st.Dev, st.Ino
}

func openPath(at int, name, full string) (File, error) {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return File{}, &os.PathError{Op: "open", Path: full, Err: err}
	}
	o := File{file: os.NewFile(uintptr(fd), full), Name: full}
	if o.Info, err = o.file.Stat(); err != nil {
		return File{}, errors.Join(err, o.Close())
	}
	if o.Info.Mode()&fs.ModeSymlink != 0 {
		return File{}, errors.Join(errLink(full), o.Close())
	}
	return o, nil
}
