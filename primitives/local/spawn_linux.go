package local

import (
	"bytes"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// burstSupported says that one poll call can wait for a process together with its output.
const burstSupported = true

// forkExec starts a process in a process group or session of its own. The returned pidfd is -1
// where the kernel has none.
func forkExec(spec *spawnSpec) (pid, pidfd int, err error) {
	pidfd = -1
	sys := &syscall.SysProcAttr{Setsid: spec.session, Setpgid: !spec.session, Credential: spec.cred, PidFD: &pidfd, Pdeathsig: spec.deathSignal}
	if spec.tty {
		// Ctty is a descriptor of the child: its standard input.
		sys.Setctty, sys.Ctty = true, 0
	}
	if spec.leaf != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, spec.leaf.FD()
	}
	pid, err = syscall.ForkExec(spec.path, spec.args, &syscall.ProcAttr{
		Dir: spec.dir, Env: spec.env, Files: spec.files, Sys: sys,
	})
	return pid, pidfd, err
}

// closeOnExec marks all descriptors of this program above standard error as close-on-exec. Go marks
// its own: this is for descriptors that the program inherited, or that a C library has opened. It
// is one system call for any number of descriptors, so it precedes each start.
func closeOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	return closeEachOnExec() // before Linux 5.11, or a filter of system calls forbids it
}

// offerToOOM makes the process and its descendants, present and future, the first that the OOM
// killer kills; see proc_pid_oom_score_adj(5). Among themselves such processes keep their order. It
// does nothing if this user has no permission for the process.
func offerToOOM(pid int) {
	dir := "/proc/" + strconv.Itoa(pid)
	fd, err := unix.Open(dir+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte("1000"))
	_ = unix.Close(fd)
	// Existing children keep the score that they inherited.
	fd, err = unix.Open(dir+"/task/"+strconv.Itoa(pid)+"/children", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	// A bound, because the caller may hold a lock: a command that has just started has few
	// children, and those beyond it keep their score.
	var list [256]byte
	n, _ := unix.Read(fd, list[:])
	_ = unix.Close(fd)
	whole := bytes.LastIndexByte(list[:max(n, 0)], ' ') + 1 // a space follows each number
	for child := range strings.FieldsSeq(string(list[:whole])) {
		if number, err := strconv.Atoi(child); err == nil {
			offerToOOM(number)
		}
	}
}

// exitWatch waits for the end of a process without reaping it.
type exitWatch struct {
	pid int
	f   *os.File // the pidfd; nil where the kernel has none
	raw syscall.RawConn
}

// watchExit returns a watch of the process. It takes ownership of pidfd, which may be -1.
func watchExit(pid, pidfd int) (*exitWatch, error) {
	w := &exitWatch{pid: pid}
	if pidfd < 0 {
		return w, nil
	}
	f, err := pollable(pidfd, "pidfd")
	if err != nil {
		return nil, err
	}
	w.f = f
	w.raw, err = f.SyscallConn()
	return w, err
}

// wait returns when the process has exited, or with an error when the watch was closed. It parks
// the goroutine and blocks no thread, unless the kernel has no pidfd.
func (w *exitWatch) wait() error {
	if w.f == nil {
		return ignoreEINTR(func() error {
			return unix.Waitid(unix.P_PID, w.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		})
	}
	return w.raw.Read(func(fd uintptr) bool {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds[:], 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
}

func (w *exitWatch) close() {
	if w.f != nil {
		_ = w.f.Close()
	}
}

// openPidfd returns a descriptor of any process, also of one that is not a child.
func openPidfd(pid int) (int, error) { return unix.PidfdOpen(pid, 0) }

// signalGroup signals the process group of exactly this leader.
func signalGroup(leader proctree.Identity, sig unix.Signal) error {
	const processGroup = 1 << 2 // PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9
	fd, err := openPidfd(leader.PID)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !proctree.Alive(leader) {
		return os.ErrProcessDone
	}
	err = unix.PidfdSendSignal(fd, sig, nil, processGroup)
	if errors.Is(err, unix.EINVAL) {
		err = unix.Kill(-leader.PID, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// hasExited reports whether the child has exited and waits to be reaped.
func hasExited(pid int) bool {
	var info unix.Siginfo
	err := ignoreEINTR(func() error {
		return unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	return err != nil || info.Signo != 0
}

// pollable makes an os.File of a descriptor. Its reads and writes park the goroutine instead of
// blocking a thread.
func pollable(fd int, name string) (*os.File, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// unblocked replaces the file by a duplicate that supports deadlines: package pty sets its own file
// to blocking with each of its calls.
func unblocked(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return pollable(fd, f.Name())
}

// newPipe returns a pipe that a child inherits only if it is passed to it.
func newPipe() (r, w int, err error) {
	var p [2]int
	err = unix.Pipe2(p[:], unix.O_CLOEXEC)
	return p[0], p[1], err
}

// growPipe enlarges the buffer of a pipe.
func growPipe(fd, size int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size)
	return err
}
