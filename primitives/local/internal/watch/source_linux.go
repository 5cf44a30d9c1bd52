package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
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

// inotify is the source on Linux.
type inotify struct {
	file  *os.File
	buf   []byte
	timed bool // a deadline is set
}

func newSource() (source, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("raise fs.inotify.max_user_instances (sysctl) or the limit of open files (ulimit -n): %w: %w", primitives.ErrLimit, err)
	}
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	return &inotify{file: os.NewFile(uintptr(fd), "inotify")}, nil
}

// add watches through the open directory and not by its path, which another
// process could have made lead somewhere else.
func (s *inotify) add(dir int, path string) (int, error) {
	wd, err := s.watch("/proc/self/fd/"+strconv.Itoa(dir), watchMask)
	if errors.Is(err, unix.ENOENT) { // no /proc
		wd, err = s.watch(path, watchMask|unix.IN_DONT_FOLLOW)
	}
	if errors.Is(err, unix.ENOSPC) {
		err = limitReached()
	}
	return wd, err
}

func (s *inotify) watch(path string, mask uint32) (int, error) {
	wd := -1
	err := s.control(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, path, mask)
		return err
	})
	return wd, err
}

// remove reports nothing: the kernel drops watches by itself, too.
func (s *inotify) remove(wd int) {
	_ = s.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(wd)) //nolint:gosec // the kernel's own number
		return err
	})
}

// control runs a system call on the descriptor while nobody can close it.
func (s *inotify) control(call func(fd int) error) error {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = conn.Control(func(fd uintptr) { cerr = call(int(fd)) })
	return errors.Join(err, cerr)
}

func (s *inotify) read(until time.Time) ([]raw, bool, error) {
	if s.buf == nil {
		s.buf = make([]byte, readSize)
	}
	if s.timed || !until.IsZero() {
		if err := s.file.SetReadDeadline(until); err != nil {
			return nil, false, err
		}
		s.timed = !until.IsZero()
	}
	n, err := s.file.Read(s.buf)
	if isTimeout(err) {
		n, err = s.readNow()
	}
	if err != nil {
		return nil, false, err
	}
	return parse(s.buf[:n]), len(s.buf)-n > maxEvent, nil
}

// readNow takes what has come although the time is over: a program that stood still
// finds both.
func (s *inotify) readNow() (n int, err error) {
	cerr := s.control(func(fd int) error {
		n, err = unix.Read(fd, s.buf)
		return nil
	})
	if cerr != nil {
		return 0, cerr
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return 0, os.ErrDeadlineExceeded
	}
	return max(n, 0), err
}

func (s *inotify) close() error { return s.file.Close() }

// parse reads the kernel's struct inotify_event.
func parse(buf []byte) []raw {
	raws := make([]raw, 0, len(buf)/32+1)
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf)) //nolint:gosec // signed in the kernel, too
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

// appendDirents reads the kernel's struct linux_dirent64.
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
