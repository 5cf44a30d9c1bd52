//go:build !linux

package proctree

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Stat is not supported on this system.
func Stat(int) (Proc, error) { return Proc{}, errors.ErrUnsupported }

// Snapshot is not supported on this system.
func Snapshot() ([]Proc, error) { return nil, errors.ErrUnsupported }

// Describe returns the PIDs of the processes that still exist, and no more.
func Describe(pids []int) []Proc {
	var procs []Proc
	for _, pid := range pids {
		if id := (Identity{PID: pid}); Alive(id) {
			procs = append(procs, Proc{Identity: id})
		}
	}
	return procs
}

// Mark returns false: this system does not show environments.
func Mark(Proc, ...string) ([]string, bool) { return nil, false }

// Self returns the identity of the calling process, without a start time.
func Self() Identity { return Identity{PID: os.Getpid()} }

// Alive reports whether a process with this PID exists.
func Alive(id Identity) bool {
	if id.PID <= 0 {
		return false
	}
	err := unix.Kill(id.PID, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}

// Signal sends a signal to the process with this PID.
func Signal(id Identity, sig unix.Signal) error {
	err := unix.Kill(id.PID, sig)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// BootID returns "" on this system.
func BootID() string { return "" }

// Memory is not supported on this system.
func Memory([]Proc) (int64, bool) { return 0, false }
