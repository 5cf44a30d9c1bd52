package testpostgres

import "syscall"

// endWithThread makes a process end when the thread that started it ends.
func endWithThread(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
