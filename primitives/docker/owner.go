package docker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The labels of everything that this package makes on an engine. They say whose
// it is, so that nobody cleans up after a program that lives.
const (
	labelPrefix  = "dev.agentenv."
	labelSandbox = labelPrefix + "sandbox" // the sandbox's ID
	labelSession = labelPrefix + "session" // Config.Session
	labelKeep    = labelPrefix + "keep"    // "true" or "false": Config.Keep
	labelExpires = labelPrefix + "expires" // until when it is kept, RFC 3339; empty is for ever
	labelHost    = labelPrefix + "owner.host"
	labelPID     = labelPrefix + "owner.pid"
	labelPIDs    = labelPrefix + "owner.pidns"   // within which the number counts
	labelStarted = labelPrefix + "owner.started" // in the kernel's ticks since boot
	labelBoot    = labelPrefix + "owner.boot"
)

// ownerLabels describe this program and what cfg says about the life of what it
// makes.
func ownerLabels(cfg Config) map[string]string {
	host, _ := os.Hostname() // it is for people; empty is unknown
	pid := os.Getpid()
	expires := ""
	if cfg.Keep && cfg.ExpiresAfterSeconds > 0 {
		expires = time.Now().Add(cfg.expiry()).UTC().Format(time.RFC3339)
	}
	return map[string]string{
		labelSession: cfg.Session, labelKeep: strconv.FormatBool(cfg.Keep), labelExpires: expires,
		labelHost: host, labelPID: strconv.Itoa(pid), labelPIDs: pidNamespace(),
		labelStarted: startTime(pid), labelBoot: bootID(),
	}
}

// sandboxLabels are ownerLabels of a sandbox and of what goes with it.
func sandboxLabels(name string, cfg Config) map[string]string {
	labels := ownerLabels(cfg)
	labels[labelSandbox] = name
	return labels
}

// ownerFate is what became of the program that made something.
type ownerFate int

const (
	// ownerUnknown: it runs, or ran, where this program cannot look: on another
	// machine, before this machine was started, or in another container.
	ownerUnknown ownerFate = iota
	ownerAlive
	ownerDead
)

// findOwner looks for the program that the labels describe.
func findOwner(labels map[string]string) ownerFate {
	boot := bootID()
	if boot == "" || labels[labelBoot] != boot || labels[labelPIDs] != pidNamespace() {
		return ownerUnknown
	}
	pid, err := strconv.Atoi(labels[labelPID])
	if err != nil || pid <= 0 || labels[labelStarted] == "" {
		return ownerUnknown
	}
	switch startTime(pid) {
	case labels[labelStarted]:
		return ownerAlive
	case "":
		// Where programs of others are hidden, signals still find them.
		if err := unix.Kill(pid, 0); errors.Is(err, unix.EPERM) {
			return ownerUnknown
		}
	}
	return ownerDead
}

// keptUntil returns whether something is to outlive its program, and until when;
// the zero time is for ever. A date that cannot be read is never over.
func keptUntil(labels map[string]string) (kept bool, until time.Time) {
	until, _ = time.Parse(time.RFC3339, labels[labelExpires])
	return labels[labelKeep] == "true", until
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
