package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	readSize = 64 << 10
	maxEvent = unix.SizeofInotifyEvent + unix.NAME_MAX + 1
)

// maxQueued is how many unread changes a watch may have: the kernel's default.
const maxQueued = 16384

// inotify is the source of one watch on Linux. All watches share the inotify instance of this
// process, because a user has few.
type inotify struct {
	inst *instance
	more chan struct{} // receives a value if the queue may have grown

	// The caller must hold inst.mu for these.
	wds    map[int]bool
	queue  []raw
	full   bool // the last event in the queue is an overflow
	closed chan struct{}
}

// instance reads the kernel's events for all watches of this process as they come, so that a slow
// watch does not delay the others.
type instance struct {
	file  *os.File
	conn  syscall.RawConn
	ended chan struct{} // closed when run has returned

	mu      sync.Mutex
	buf     []byte
	sources map[*inotify]bool
	watched map[int][]*inotify // by watch descriptor
}

// shared holds the instance while there is a watch.
var shared struct {
	sync.Mutex
	inst *instance
}

func newSource() (source, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.inst == nil {
		inst, err := newInstance()
		if err != nil {
			return nil, err
		}
		shared.inst = inst
	}
	s := &inotify{inst: shared.inst, more: make(chan struct{}, 1), closed: make(chan struct{}), wds: make(map[int]bool)}
	s.inst.mu.Lock()
	defer s.inst.mu.Unlock()
	s.inst.sources[s] = true
	return s, nil
}

func newInstance() (*instance, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("raise fs.inotify.max_user_instances (sysctl) or the limit of open files (ulimit -n): %w: %w", primitives.ErrLimit, err)
	}
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	i := &instance{
		file: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{}), buf: make([]byte, readSize),
		sources: make(map[*inotify]bool), watched: make(map[int][]*inotify),
	}
	if i.conn, err = i.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, i.file.Close())
	}
	go i.run()
	return i, nil
}

// run reads events until the file is closed.
func (i *instance) run() {
	defer close(i.ended)
	_ = i.conn.Read(func(fd uintptr) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.pump(int(fd))
		return false // wait for more
	})
}

// maxReads bounds how many reads pump makes while other calls wait. More events may remain.
const maxReads = 16

// pump delivers the kernel's events, and reports whether it delivered all. The caller holds mu.
func (i *instance) pump(fd int) (drained bool) {
	for range maxReads {
		n, err := unix.Read(fd, i.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return true
		}
		for _, ev := range parse(i.buf[:n]) {
			i.deliver(ev)
		}
		if len(i.buf)-n > maxEvent {
			return true
		}
	}
	return false
}

func (i *instance) deliver(ev raw) {
	if ev.kind == rawOverflow {
		for s := range i.sources {
			s.put(ev)
		}
		return
	}
	for _, s := range i.watched[ev.wd] {
		s.put(ev)
		if ev.kind == rawEnd {
			delete(s.wds, ev.wd)
		}
	}
	if ev.kind == rawEnd {
		delete(i.watched, ev.wd)
	}
}

// put queues a change. Like the kernel it drops one that equals the previous change.
func (s *inotify) put(ev raw) {
	n := len(s.queue)
	switch {
	case s.full, n > 0 && s.queue[n-1] == ev:
		return
	case n == maxQueued:
		ev, s.full = raw{kind: rawOverflow, wd: -1}, true
	}
	s.queue = append(s.queue, ev)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// add watches the open directory and does not use its path, which another process could have
// changed to lead elsewhere.
func (s *inotify) add(dir int, path string) (int, error) {
	wd := -1
	err := s.do(func(fd int) error {
		var err error
		wd, err = unix.InotifyAddWatch(fd, "/proc/self/fd/"+strconv.Itoa(dir), watchMask)
		if errors.Is(err, unix.ENOENT) { // no /proc
			wd, err = unix.InotifyAddWatch(fd, path, watchMask|unix.IN_DONT_FOLLOW)
		}
		if err != nil || s.wds[wd] {
			return err
		}
		if len(s.inst.watched[wd]) > 0 {
			s.inst.pump(fd) // deliver earlier events to the other watches only
		}
		s.wds[wd] = true
		s.inst.watched[wd] = append(s.inst.watched[wd], s)
		return nil
	})
	if errors.Is(err, unix.ENOSPC) {
		err = limitReached()
	}
	return wd, err
}

// remove reports no error: the kernel drops watches by itself, too.
func (s *inotify) remove(wd int) {
	_ = s.do(func(fd int) error {
		s.drop(fd, wd)
		return nil
	})
}

// drop removes the kernel's watch if no other source needs it. The caller holds inst.mu.
func (s *inotify) drop(fd, wd int) {
	if !s.wds[wd] {
		return
	}
	delete(s.wds, wd)
	others := slices.DeleteFunc(s.inst.watched[wd], func(o *inotify) bool { return o == s })
	s.inst.watched[wd] = others
	if len(others) == 0 {
		delete(s.inst.watched, wd)
		_, _ = unix.InotifyRmWatch(fd, uint32(wd)) // wd came from the kernel
	}
}

// do calls call with the lock of the instance held, so that the instance cannot be closed
// meanwhile.
func (s *inotify) do(call func(fd int) error) error {
	s.inst.mu.Lock()
	defer s.inst.mu.Unlock()
	if isClosed(s.closed) {
		return os.ErrClosed
	}
	var cerr error
	err := s.inst.conn.Control(func(fd uintptr) { cerr = call(int(fd)) })
	return errors.Join(err, cerr)
}

func (s *inotify) read(until time.Time) ([]raw, bool, error) {
	var timeout <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		timeout = timer.C
	}
	for over := false; ; {
		var raws []raw
		var drained bool
		err := s.do(func(fd int) error {
			drained = s.inst.pump(fd)
			raws, s.queue, s.full = s.queue, nil, false
			return nil
		})
		if err != nil || len(raws) > 0 {
			return raws, drained, err
		}
		if over {
			return nil, drained, os.ErrDeadlineExceeded
		}
		select {
		case <-s.more:
		case <-s.closed:
		case <-timeout:
			over = true // a process that was stopped may have both: look once more
		}
	}
}

func (s *inotify) close() error {
	shared.Lock()
	err := s.do(func(fd int) error {
		close(s.closed)
		delete(s.inst.sources, s)
		if len(s.inst.sources) == 0 {
			shared.inst = nil
			return nil
		}
		for wd := range maps.Clone(s.wds) {
			s.drop(fd, wd)
			s.inst.pump(fd) // each removal queues an event, and the kernel's queue is short
		}
		return nil
	})
	last := err == nil && shared.inst != s.inst
	shared.Unlock()
	if !last {
		return nil
	}
	err = s.inst.file.Close()
	<-s.inst.ended
	return err
}

// parse parses the kernel's struct inotify_event.
func parse(buf []byte) []raw {
	raws := make([]raw, 0, len(buf)/32+1)
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf)) // the kernel's type is signed
		mask := binary.NativeEndian.Uint32(buf[4:])
		cookie := binary.NativeEndian.Uint32(buf[8:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		if end > len(buf) {
			break
		}
		name, _, _ := strings.Cut(string(buf[unix.SizeofInotifyEvent:end]), "\x00")
		buf = buf[end:]
		raws = append(raws, raw{kind: kindOf(mask), wd: int(wd), name: name, dir: mask&unix.IN_ISDIR != 0, cookie: cookie})
	}
	return raws
}

func kindOf(mask uint32) rawKind {
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		return rawOverflow
	case mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		return rawEnd
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		return rawGone
	case mask&unix.IN_CREATE != 0:
		return rawCreate
	case mask&unix.IN_DELETE != 0:
		return rawDelete
	case mask&unix.IN_MOVED_FROM != 0:
		return rawFrom
	case mask&unix.IN_MOVED_TO != 0:
		return rawTo
	case mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0:
		return rawModify
	}
	return rawNone
}

// list returns the names in an open directory.
func (s *scanner) list(fd int) ([]dirent, error) {
	if s.buf == nil {
		s.buf = make([]byte, 32<<10)
	}
	var list []dirent
	for {
		n, err := unix.Getdents(fd, s.buf)
		if err != nil || n <= 0 {
			return list, err
		}
		list = appendDirents(list, s.buf[:n], fd)
	}
}

// appendDirents parses the kernel's struct linux_dirent64.
func appendDirents(list []dirent, buf []byte, fd int) []dirent {
	const typeAt, nameAt = 18, 19
	for len(buf) > nameAt {
		size := int(binary.NativeEndian.Uint16(buf[16:]))
		if size <= nameAt || size > len(buf) {
			break
		}
		kind := buf[typeAt]
		name, _, _ := strings.Cut(string(buf[nameAt:size]), "\x00")
		buf = buf[size:]
		if name == "." || name == ".." {
			continue
		}
		dir := kind == unix.DT_DIR
		if kind == unix.DT_UNKNOWN {
			var st unix.Stat_t
			dir = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && isDir(&st)
		}
		list = append(list, dirent{name, dir})
	}
	return list
}
