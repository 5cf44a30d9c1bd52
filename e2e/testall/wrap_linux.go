package main

import "syscall"

// endWithParent makes the kernel kill a child when this process ends.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
