// Package patience waits for what may not come.
package patience

import (
	"context"
	"time"
)

// steps is in how many parts a time passes.
const steps = 5

// Wait waits until done is closed, at most for most, and reports whether it is closed.
// It counts short waits, not the clock: a program that stood still, on a busy host or in a
// suspended machine, loses one of them and still notices what happened meanwhile.
func Wait(done <-chan struct{}, most time.Duration) bool {
	for range steps {
		timer := time.NewTimer(most / steps)
		select {
		case <-done:
			timer.Stop()
			return true
		case <-timer.C:
		}
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Outlast returns a context that is done only some time after ctx. It has the values of ctx
// and no deadline. The function frees it and must be called.
func Outlast(ctx context.Context, more time.Duration) (context.Context, context.CancelFunc) {
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(more)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-patient.Done():
		}
	})
	return patient, func() {
		stop()
		cancel()
	}
}
