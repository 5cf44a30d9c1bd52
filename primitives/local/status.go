package local

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// signalNumber returns the number of a signal name, with or without SIG.
func signalNumber(sig primitives.Signal) (syscall.Signal, error) {
	name := "SIG" + strings.TrimPrefix(string(sig), "SIG")
	if n := unix.SignalNum(name); n != 0 {
		return n, nil
	}
	return 0, fmt.Errorf("%w: this system knows no signal %q", fs.ErrInvalid, sig)
}

func signalName(n syscall.Signal) primitives.Signal {
	if name := unix.SignalName(n); name != "" {
		return primitives.Signal(strings.TrimPrefix(name, "SIG"))
	}
	return primitives.Signal(fmt.Sprintf("%d", int(n)))
}

// exitStatus returns how a reaped process ended. reason is set if this program ended it. asked says
// that Signal sent a SIGKILL.
func (s *Sandbox) exitStatus(ws unix.WaitStatus, err error, reason primitives.ExitReason, asked bool) primitives.ExitStatus {
	if err != nil {
		// Other code in this program has reaped the child.
		return primitives.ExitStatus{Code: -1, Reason: primitives.ReasonLost}
	}
	st := primitives.ExitStatus{Code: ws.ExitStatus(), Reason: primitives.ReasonExited}
	if ws.Signaled() {
		n := ws.Signal()
		st = primitives.ExitStatus{Code: 128 + int(n), Signal: signalName(n), Reason: primitives.ReasonSignaled}
		if n == unix.SIGKILL && !asked && reason == "" && s.oom.struck() {
			st.Reason = primitives.ReasonOOM
		}
	}
	switch {
	case reason != "":
		st.Reason = reason
	case !asked && s.life != nil && s.isEnding():
		st.Reason = primitives.ReasonCancelled
	case ws.Signaled() && !asked && s.life != nil && errors.Is(s.checkAlive(), primitives.ErrUnavailable):
		// The program that removed the sandbox also ended its processes.
		st.Reason = primitives.ReasonLost
	}
	return st
}
