package docker

import (
	"strconv"
	"time"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// The labels of everything that this package makes on an engine. They name the
// owner, so that no collection removes what belongs to a live program.
const (
	labelPrefix  = "dev.agentenv."
	labelSandbox = labelPrefix + "sandbox" // the sandbox's ID
	labelSession = labelPrefix + "session" // Spec.Session
	labelKeep    = labelPrefix + "keep"    // "true" or "false": Spec.Keep
	labelExpires = labelPrefix + "expires" // until when it is kept, RFC 3339; empty means forever
	labelGuest   = labelPrefix + "guest"   // the version of the guest protocol
	labelHost    = labelPrefix + "owner.host"
	labelPID     = labelPrefix + "owner.pid"
	labelPIDs    = labelPrefix + "owner.pidns"   // the PID namespace of the owner
	labelStarted = labelPrefix + "owner.started" // in the kernel's ticks since boot
	labelBoot    = labelPrefix + "owner.boot"
)

// ownerLabels returns labels that describe this program, and how long cfg keeps what it makes.
func ownerLabels(cfg config) map[string]string {
	expires := ""
	if cfg.Keep && cfg.Expires > 0 {
		expires = time.Now().Add(cfg.Expires).UTC().Format(time.RFC3339)
	}
	self := owner.Self()
	return map[string]string{
		labelSession: cfg.Session, labelKeep: strconv.FormatBool(cfg.Keep), labelExpires: expires,
		labelHost: self.Host, labelPID: self.PID, labelPIDs: self.PIDs,
		labelStarted: self.Started, labelBoot: self.Boot,
	}
}

// sandboxLabels returns the labels of a sandbox and of everything that belongs to it.
func sandboxLabels(name string, cfg config) map[string]string {
	labels := ownerLabels(cfg)
	labels[labelSandbox], labels[labelGuest] = name, strconv.Itoa(guest.Version)
	return labels
}

// findOwner returns whether the program that the labels describe lives.
func findOwner(labels map[string]string) owner.Liveness {
	return owner.Identity{
		PID: labels[labelPID], PIDs: labels[labelPIDs], Started: labels[labelStarted], Boot: labels[labelBoot],
	}.Liveness()
}

// keptUntil returns whether something outlives its program, and until when; the zero time means
// forever. A date that cannot be parsed means forever.
func keptUntil(labels map[string]string) (kept bool, until time.Time) {
	until, _ = time.Parse(time.RFC3339, labels[labelExpires])
	return labels[labelKeep] == "true", until
}
