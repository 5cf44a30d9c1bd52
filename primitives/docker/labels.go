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
	labelExpires = labelPrefix + "expires" // until when it is kept, RFC 3339; empty is for ever
	labelGuest   = labelPrefix + "guest"   // the version of the guest protocol
	labelHost    = labelPrefix + "owner.host"
	labelPID     = labelPrefix + "owner.pid"
	labelPIDs    = labelPrefix + "owner.pidns"   // within which the number counts
	labelStarted = labelPrefix + "owner.started" // in the kernel's ticks since boot
	labelBoot    = labelPrefix + "owner.boot"
)

// ownerLabels describe this program and what cfg says about the life of what it
// makes.
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

// sandboxLabels are ownerLabels of a sandbox and of what goes with it.
func sandboxLabels(name string, cfg config) map[string]string {
	labels := ownerLabels(cfg)
	labels[labelSandbox], labels[labelGuest] = name, strconv.Itoa(guest.Version)
	return labels
}

// ownerFate is what became of the program that made something.
type ownerFate = owner.Fate

const (
	ownerUnknown = owner.Unknown
	ownerAlive   = owner.Alive
	ownerDead    = owner.Dead
)

// findOwner looks for the program that the labels describe.
func findOwner(labels map[string]string) ownerFate {
	return owner.Identity{
		PID: labels[labelPID], PIDs: labels[labelPIDs], Started: labels[labelStarted], Boot: labels[labelBoot],
	}.Fate()
}

// keptUntil returns whether something is to outlive its program, and until when;
// the zero time is for ever. A date that cannot be read is never over.
func keptUntil(labels map[string]string) (kept bool, until time.Time) {
	until, _ = time.Parse(time.RFC3339, labels[labelExpires])
	return labels[labelKeep] == "true", until
}
