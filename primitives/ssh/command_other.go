//go:build !linux

package ssh

import "syscall"

// attributes keep the interrupt key from the ssh command.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
