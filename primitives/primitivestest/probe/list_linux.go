package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// find returns the other processes that have the token in their arguments. A zombie no longer
// has arguments.
func find(token string) ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := []int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Ignore a process that has ended meanwhile.
		line, _ := os.ReadFile("/proc/" + name + "/cmdline")
		if strings.Contains(string(line), token) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// defaultSignal restores the default action of a signal, which the Go runtime replaces for some
// signals, and prevents a core file.
func defaultSignal(sig syscall.Signal) {
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	var action [4]uint64 // all zero: the default
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}
