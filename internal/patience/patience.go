// Package patience waits with limits that suit busy and suspended machines.
package patience

import (
	"context"
	"time"
)

// steps is the number of parts into which Wait divides its time.
const steps = 5

// Wait waits until done is closed or most has passed, and reports whether done is closed. It
// adds up short waits instead of using one timer: a program that did not run for a while, on a
// busy host or a suspended machine, loses only one of them and still notices that done was
// closed since.
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

// Outlast returns a context that is done only some time after ctx is. It has the values of ctx
// and no deadline. The caller must call the returned function to release its resources.
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
