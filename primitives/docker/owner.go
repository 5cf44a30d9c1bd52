package docker

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// The labels of every container. They say whose it is, so that nobody cleans up
// after a program that lives.
const (
	labelPrefix  = "dev.agentenv."
	labelSandbox = labelPrefix + "sandbox" // the sandbox's ID
	labelHost    = labelPrefix + "owner.host"
	labelPID     = labelPrefix + "owner.pid"
	labelStarted = labelPrefix + "owner.started" // in the kernel's ticks since boot
	labelBoot    = labelPrefix + "owner.boot"
)

// ownerLabels describe this program.
func ownerLabels(sandbox string) map[string]string {
	host, _ := os.Hostname() // empty is nobody's
	pid := os.Getpid()
	return map[string]string{
		labelSandbox: sandbox, labelHost: host, labelPID: strconv.Itoa(pid),
		labelStarted: startTime(pid), labelBoot: bootID(),
	}
}

// ownerLives reports whether the program that the labels describe runs, as far as
// can be seen from this machine.
func ownerLives(labels map[string]string) bool {
	host, _ := os.Hostname()
	if host == "" || labels[labelHost] != host || labels[labelBoot] != bootID() {
		return false
	}
	pid, err := strconv.Atoi(labels[labelPID])
	if err != nil || pid <= 0 {
		return false
	}
	started := startTime(pid)
	return started != "" && started == labels[labelStarted]
}

// bootID names the run of the kernel; empty where it has no name.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// startTime is when a process started, in ticks since boot; empty if it is gone
// or the system does not tell.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name, in parentheses, may hold anything. The time is field 22.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return ""
	}
	return string(fields[19])
}
