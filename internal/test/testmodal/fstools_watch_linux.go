package testmodal

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watchMask selects the events of a watch.
const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE | unix.IN_DELETE | unix.IN_DELETE_SELF |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO

// renameGap is how long to wait for the second half of a rename.
const renameGap = 20 * time.Millisecond

// inotify is an active watch.
type inotify struct {
	tools
	req   watchRequest
	fd    int
	file  *os.File  // of fd
	end   time.Time // zero means never
	paths map[int32]string
	moved *rawEvent // the first half of a rename
}

// rawEvent is an event of the kernel.
type rawEvent struct {
	mask, cookie uint32
	path         string
}

// watch reports changes until the timeout or EOF on stdin.
func (t tools) watch(req watchRequest) error {
	path, err := filepath.EvalSymlinks(req.Path)
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	w := &inotify{tools: t, req: req, fd: fd, file: os.NewFile(uintptr(fd), "inotify"), paths: map[int32]string{}} // a descriptor
	defer func() { _ = w.file.Close() }()
	if err := w.add(path, false); err != nil {
		return err
	}
	if req.Timeout != nil {
		w.end = time.Now().Add(time.Duration(*req.Timeout) * time.Second)
	}
	closed := make(chan struct{})
	go func() { // the client ends the watch by closing stdin
		defer close(closed)
		_, _ = io.Copy(io.Discard, t.stdin)
		_ = w.file.Close()
	}()
	err = w.loop()
	_ = t.stdin.Close()
	<-closed
	return err
}

// add watches a path and, if the request is recursive, everything below it. It also reports the
// content of a new directory as created, because it may be older than the watch.
func (w *inotify) add(path string, fresh bool) error {
	wd, err := unix.InotifyAddWatch(w.fd, path, watchMask)
	if err != nil {
		return err
	}
	w.paths[int32(wd)] = path // the kernel's own type
	if !w.req.Recursive {
		return nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil // not a directory, or already removed
	}
	for _, entry := range entries {
		full := filepath.Join(path, entry.Name())
		if fresh {
			w.emit(w.req, "Create", full)
		}
		if entry.IsDir() {
			if err := w.add(full, fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// loop reads events until the end of the watch.
func (w *inotify) loop() error {
	b := make([]byte, 64<<10)
	for {
		deadline := w.end
		if w.moved != nil {
			deadline = time.Now().Add(renameGap)
		}
		if err := w.file.SetReadDeadline(deadline); err != nil {
			return nil // the file was closed
		}
		n, err := w.file.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && w.moved != nil:
			w.flush()
		case err != nil:
			w.flush()
			return nil // the timeout, or the file was closed
		default:
			w.parse(b[:n])
		}
	}
}

// parse splits the result of one read into events.
func (w *inotify) parse(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		order := binary.NativeEndian
		wd, mask, cookie, size := int32(order.Uint32(b)), order.Uint32(b[4:]), order.Uint32(b[8:]), order.Uint32(b[12:]) // wd is signed
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		b = b[unix.SizeofInotifyEvent+size:]
		path, ok := w.paths[wd]
		if !ok {
			continue
		}
		if mask&unix.IN_IGNORED != 0 {
			delete(w.paths, wd)
			continue
		}
		w.tell(rawEvent{mask, cookie, filepath.Join(path, name)})
	}
}

// tell reports an event. It keeps one that may be the first half of a rename.
func (w *inotify) tell(e rawEvent) {
	if w.moved != nil && e.mask&unix.IN_MOVED_TO != 0 && e.cookie == w.moved.cookie {
		w.emit(w.req, "Rename", w.moved.path, e.path)
		w.moved = nil
		w.follow(e)
		return
	}
	w.flush()
	switch {
	case e.mask&unix.IN_MOVED_FROM != 0:
		w.moved = &e
	case e.mask&unix.IN_MOVED_TO != 0:
		w.emit(w.req, "RenameTo", e.path)
		w.follow(e)
	case e.mask&unix.IN_CREATE != 0:
		w.emit(w.req, "Create", e.path)
		w.follow(e)
	case e.mask&(unix.IN_DELETE|unix.IN_DELETE_SELF) != 0:
		w.emit(w.req, "Remove", e.path)
	case e.mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0:
		w.emit(w.req, "Modify", e.path)
	case e.mask&unix.IN_CLOSE_WRITE != 0:
		w.emit(w.req, "Access", e.path)
	}
}

// follow watches a new directory.
func (w *inotify) follow(e rawEvent) {
	if w.req.Recursive && e.mask&unix.IN_ISDIR != 0 {
		_ = w.add(e.path, true) // it may already be removed
	}
}

// flush reports the first half of a rename whose second half has not come.
func (w *inotify) flush() {
	if w.moved != nil {
		w.emit(w.req, "RenameFrom", w.moved.path)
		w.moved = nil
	}
}
