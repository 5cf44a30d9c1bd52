package ssh

import "syscall"

// attributes returns attributes that protect the ssh command from the interrupt key and
// terminate it when the thread that started it ends. Without that, the guest of a kept sandbox
// would keep the connection open after this program was killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
}
