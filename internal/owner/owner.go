// Package owner identifies the owner of a sandbox or another resource, and reports whether it
// is alive, so that garbage collection only removes orphans.
package owner

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Identity identifies one run of a program.
type Identity struct {
	Host    string `json:"host,omitempty"` // the machine's name, for users; empty means unknown
	PID     string `json:"pid,omitempty"`
	PIDs    string `json:"pids,omitempty"`    // the PID namespace
	Started string `json:"started,omitempty"` // in kernel ticks since boot; empty if the system does not report it
	Boot    string `json:"boot,omitempty"`    // the kernel's boot ID; empty if there is none
}

// Self returns the identity of this program.
func Self() Identity {
	host, _ := os.Hostname() // empty means unknown
	pid := os.Getpid()
	return Identity{Host: host, PID: strconv.Itoa(pid), PIDs: pidNamespace(), Started: startTime(pid), Boot: bootID()}
}

// Liveness says whether the program of an [Identity] still runs.
type Liveness int

// The values of Liveness.
const (
	// Unknown means that the owner is or was where this program cannot look: on another machine
	// or in another container.
	Unknown Liveness = iota
	Alive
	Dead
)

// Liveness returns whether the program runs; Unknown if this program cannot see it.
func (i Identity) Liveness() Liveness {
	boot := bootID()
	switch {
	case endedByReboot(i.Host, i.Boot, boot):
		return Dead
	case boot == "" || i.Boot != boot || i.PIDs != pidNamespace():
		return Unknown
	}
	pid, err := strconv.Atoi(i.PID)
	if err != nil || pid <= 0 || i.Started == "" {
		return Unknown
	}
	switch startTime(pid) {
	case i.Started:
		return Alive
	case "":
		// Signals also find processes that /proc hides because other users own them.
		if err := unix.Kill(pid, 0); errors.Is(err, unix.EPERM) {
			return Unknown
		}
	}
	return Dead
}

// endedByReboot reports whether a program of the given host and boot ID ended with a
// reboot: the host is this machine, and its boot ID is now another one. Machines are identified
// by their names.
func endedByReboot(host, boot, now string) bool {
	name, err := os.Hostname()
	return err == nil && name != "" && host == name && boot != "" && now != "" && boot != now
}

// bootID returns the kernel's boot ID, or "" if there is none.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// pidNamespace returns the name of this program's PID namespace.
func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid") // empty if the system has no namespaces
	return name
}

// startTime returns when a process started, in ticks since boot. It is empty if the process has
// ended, even if it was not reaped yet, or if the system does not report it.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name, in parentheses, may contain any characters. The start time is field 22, the
	// state field 3.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 || bytes.ContainsAny(fields[0], "ZXx") {
		return ""
	}
	return string(fields[19])
}
