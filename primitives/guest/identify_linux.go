package guest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Numbers of the kernel's interface, the same on all architectures.
const (
	pathOnly = 0x200000 // O_PATH
	procFS   = 0x9fa0   // PROC_SUPER_MAGIC
	readOnly = 1        // ST_RDONLY
)

// kernelName returns the boot ID of the kernel. It only accepts the kernel's own file, because
// an image may have another file at that path.
func kernelName() (string, error) {
	f, err := os.Open("/proc/sys/kernel/random/boot_id")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it is only read
	var st syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &st); err != nil {
		return "", os.NewSyscallError("fstatfs", err)
	}
	if st.Type != procFS {
		return "", nil
	}
	var name [64]byte
	n, err := f.Read(name[:])
	return string(bytes.TrimSpace(name[:n])), err
}

func identify(path string) (FileIdentity, error) {
	fail := func(err error) (FileIdentity, error) {
		return FileIdentity{}, &os.PathError{Op: "identify", Path: path, Err: err}
	}
	fd, err := syscall.Open(path, pathOnly|syscall.O_CLOEXEC, 0)
	if errors.Is(err, syscall.EACCES) {
		return FileIdentity{Denied: true}, nil
	}
	if err != nil {
		return fail(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	var st syscall.Stat_t
	var mounted syscall.Statfs_t
	if err := errors.Join(syscall.Fstat(fd, &st), syscall.Fstatfs(fd, &mounted)); err != nil {
		return fail(err)
	}
	return FileIdentity{Dev: st.Dev, Ino: st.Ino, ReadOnly: mounted.Flags&readOnly != 0}, nil
}
