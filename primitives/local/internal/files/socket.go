package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"

	"golang.org/x/sys/unix"
)

// Socket returns a short path for the Unix socket name, whose own path may be longer than the 107
// bytes that the system accepts. With bind it is the path of a new socket. The path is valid until
// done is called.
func (f *FS) Socket(ctx context.Context, name string, bind bool) (short string, done func(), err error) {
	if err := f.begin(ctx, name); err != nil {
		return "", nil, err
	}
	t, err := f.tree(name)
	if err != nil {
		return "", nil, err
	}
	defer t.close()
	var p place
	if bind {
		p, err = t.place(name, false)
	} else {
		p, _, err = t.follow(name, false)
		if errors.Is(err, unix.ENOENT) && p.dir >= 0 {
			p.close()
		}
	}
	if err != nil {
		return "", nil, Classify(err)
	}
	if runtime.GOOS == "linux" {
		dir := os.NewFile(uintptr(p.dir), p.base)
		return fmt.Sprintf("/proc/self/fd/%d/%s", p.dir, p.leaf), func() { _ = dir.Close() }, nil
	}
	p.close()
	base, err := f.locate(p.base)
	return path.Join(base, p.leaf), func() {}, Classify(err)
}

// Own gives a new file to the owner of the sandbox's files.
func (f *FS) Own(name string) error {
	if f.cfg.UID < 0 && f.cfg.GID < 0 {
		return nil
	}
	return unix.Lchown(name, f.cfg.UID, f.cfg.GID)
}
