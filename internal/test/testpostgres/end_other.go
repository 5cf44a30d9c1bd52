//go:build !linux

package testpostgres

import "syscall"

// endWithThread does nothing: a server whose test is killed has to be ended by hand.
func endWithThread(*syscall.SysProcAttr) {}
