package watch

import (
	"errors"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
)

// describe returns the event of a change. It looks at the file for its size and content.
func (w *watcher) describe(c change) primitives.WatchEvent {
	ev := primitives.WatchEvent{Op: c.op, Path: c.path, From: c.from, Dir: c.dir, Time: time.Now()}
	if c.op == primitives.OpRemove || c.op == primitives.OpOverflow || c.dir {
		return ev
	}
	dir, name, err := w.holder(c.path)
	if err != nil {
		w.omit(&ev, primitives.OmittedUnreadable)
		return ev
	}
	defer w.release(dir)
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		w.omit(&ev, primitives.OmittedUnreadable)
		return ev
	}
	ev.Size = st.Size
	if w.wantsContent(c.op) {
		w.attachContent(&ev, dir, name)
	}
	return ev
}

func (w *watcher) wantsContent(op primitives.WatchOp) bool {
	return w.cfg.Options.MaxContent > 0 && (op == primitives.OpCreate || op == primitives.OpModify)
}

func (w *watcher) omit(ev *primitives.WatchEvent, why primitives.ContentOmitted) {
	if w.wantsContent(ev.Op) {
		ev.Omitted = why
	}
}

// attachContent reads a regular file into the event. It does not open a FIFO or follow a link that
// has just replaced the file.
func (w *watcher) attachContent(ev *primitives.WatchEvent, dir int, name string) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		ev.Omitted = primitives.OmittedUnreadable
		return
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	limit := w.cfg.Options.MaxContent
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		ev.Omitted = primitives.OmittedUnreadable
		return
	case info.Size() > limit:
		ev.Size, ev.Omitted = info.Size(), primitives.OmittedTooLarge
		return
	}
	// Read one byte more than the file has, to see whether it grows.
	content := make([]byte, info.Size()+1)
	n, err := io.ReadFull(f, content)
	for err == nil && int64(n) <= limit {
		content = append(content, make([]byte, min(int64(len(content)), limit+1-int64(n)))...)
		var m int
		m, err = io.ReadFull(f, content[n:])
		n += m
	}
	switch {
	case int64(n) > limit:
		ev.Omitted = primitives.OmittedTooLarge
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		ev.Content, ev.Size = content[:n], int64(n)
	default:
		ev.Omitted = primitives.OmittedUnreadable
	}
}

// holder opens the directory that holds a path. The caller must release it.
func (w *watcher) holder(rel string) (dir int, name string, err error) {
	root, err := w.openRoot()
	if err != nil {
		return -1, "", err
	}
	base, name := path.Split(rel)
	if base == "" {
		return root, name, nil
	}
	dir, err = (beneath.Root{FD: root}).OpenDir(base, beneath.Options{NoLinks: true})
	return dir, name, err
}

func (w *watcher) release(dir int) {
	if dir != w.dir {
		unix.Close(dir)
	}
}

// lstat returns the lstat result of a path below the watched directory.
func (w *watcher) lstat(rel string) (unix.Stat_t, error) {
	var st unix.Stat_t
	dir, name, err := w.holder(rel)
	if err != nil {
		return st, err
	}
	defer w.release(dir)
	return st, unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
}
