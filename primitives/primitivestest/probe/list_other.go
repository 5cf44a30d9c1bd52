//go:build !linux

package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// find returns the other processes that have the token in their arguments.
func find(token string) ([]int, error) {
	out, err := exec.Command("ps", "-axww", "-o", "pid=,args=").Output() //nolint:noctx // ends by itself
	if err != nil {
		return nil, err
	}
	pids := []int{}
	for line := range strings.Lines(string(out)) {
		number, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, err := strconv.Atoi(number)
		if err == nil && pid != os.Getpid() && strings.Contains(args, token) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func defaultSignal(syscall.Signal) {}
