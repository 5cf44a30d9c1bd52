//go:build !linux

package ssh

import "syscall"

// attributes returns attributes that protect the ssh command from the interrupt key.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
