package docker

import (
	"time"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// OwnEndTimeout is how long Terminate waits for a guest that ends by itself.
const OwnEndTimeout = ownEndTimeout

// SweepInterval is how long a program leaves it at one sweep.
const SweepInterval = sweepInterval

func driverOf(s *guest.Sandbox) *driver {
	d, _ := s.Driver().(*driver) // New and Attach make no others
	return d
}

// StayJustFrozen has a handle take the container for one that it has just paused or
// resumed until it does so the next time, however long a busy machine takes meanwhile.
func StayJustFrozen(s *guest.Sandbox) {
	later := time.Now().Add(time.Hour)
	driverOf(s).frozen.Store(&later)
}

// AwaitSweep returns when what New has begun to do beside its own work is done.
func AwaitSweep(s *guest.Sandbox) {
	if d := driverOf(s); d.sweep != nil {
		<-d.sweep.done
	}
}

// ForgetSweep has the next New of an engine look for what programs have left that died.
func ForgetSweep(host string) { forgetSweep(host) }
