package local

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

const burstSupported = false

// forkExec starts a process in a process group or session of its own. The pidfd is always -1 on
// this system.
func forkExec(spec *spawnSpec) (pid, pidfd int, err error) {
	sys := &syscall.SysProcAttr{Setsid: spec.session, Setpgid: !spec.session, Credential: spec.cred}
	if spec.tty {
		sys.Setctty, sys.Ctty = true, 0
	}
	pid, err = syscall.ForkExec(spec.path, spec.args, &syscall.ProcAttr{
		Dir: spec.dir, Env: spec.env, Files: spec.files, Sys: sys,
	})
	return pid, -1, err
}

// closeOnExec marks all descriptors of this program above standard error as close-on-exec.
func closeOnExec() error { return closeEachOnExec() }

// offerToOOM does nothing: the kernel has no such setting.
func offerToOOM(int) {}

// exitWatch waits for the end of a process without reaping it.
type exitWatch struct{ pid int }

func watchExit(pid, _ int) (*exitWatch, error) { return &exitWatch{pid: pid}, nil }

// wait returns when the process has exited. It blocks a thread.
func (w *exitWatch) wait() error {
	const idPID = 1
	var info [128]byte
	return ignoreEINTR(func() error { return waitid(idPID, w.pid, &info) })
}

func (w *exitWatch) close() {}

// openPidfd is not supported on this system.
func openPidfd(int) (int, error) { return -1, errors.ErrUnsupported }

func signalGroup(proctree.Identity, unix.Signal) error { return errors.ErrUnsupported }

// hasExited returns false, because this system cannot tell without reaping. The caller then signals
// a zombie, which does no harm.
func hasExited(int) bool { return false }

func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// unblocked returns the terminal unchanged: the poller may not accept it.
func unblocked(f *os.File) (*os.File, error) { return f, nil }

func newPipe() (r, w int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return -1, -1, err
	}
	unix.CloseOnExec(p[0])
	unix.CloseOnExec(p[1])
	return p[0], p[1], nil
}

func growPipe(int, int) error { return errors.ErrUnsupported }
