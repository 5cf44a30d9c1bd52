package ssh

import "syscall"

// attributes keep the interrupt key from the ssh command, and end it with the thread that
// has started it: when this program is killed, the guest of a kept sandbox would hold the
// connection open.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
}
