// Package owner identifies the program that created something, and reports whether that
// program lives, so that garbage collection leaves what belongs to a live program.
package owner

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Identity tells one run of a program from all others.
type Identity struct {
	Host    string // the machine's name, for people; empty is unknown
	PID     string
	PIDs    string // the set of processes within which the number counts
	Started string // in the kernel's ticks since boot; empty if the system does not tell
	Boot    string // the run of the kernel; empty where it has no name
}

// Self describes this program.
func Self() Identity {
	host, _ := os.Hostname() // empty is unknown
	pid := os.Getpid()
	return Identity{Host: host, PID: strconv.Itoa(pid), PIDs: pidNamespace(), Started: startTime(pid), Boot: bootID()}
}

// Fate is what became of the program that made something.
type Fate int

// The fates.
const (
	// Unknown: it runs, or ran, where this program cannot look: on another
	// machine or in another container.
	Unknown Fate = iota
	Alive
	Dead
)

// Fate looks for the program.
func (i Identity) Fate() Fate {
	boot := bootID()
	switch {
	case EndedWithTheMachine(i.Host, i.Boot, boot):
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
		// Where programs of others are hidden, signals still find them.
		if err := unix.Kill(pid, 0); errors.Is(err, unix.EPERM) {
			return Unknown
		}
	}
	return Dead
}

// EndedWithTheMachine reports whether a program of that machine and that run of its kernel
// has ended because this is the machine, and now another run of its kernel. Machines are
// told apart by their names.
func EndedWithTheMachine(host, boot, now string) bool {
	name, err := os.Hostname()
	return err == nil && name != "" && host == name && boot != "" && now != "" && boot != now
}

// bootID names the run of the kernel; empty where it has no name.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// pidNamespace names the set of processes that this program sees.
func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid") // empty where there are none
	return name
}

// startTime is when a process started, in ticks since boot; empty if it is gone
// or the system does not tell. A process that has ended and was not waited for is
// gone.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name, in parentheses, may hold anything. The time is field 22, the state
	// field 3.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 || bytes.ContainsAny(fields[0], "ZXx") {
		return ""
	}
	return string(fields[19])
}
