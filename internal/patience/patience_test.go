package patience_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/internal/patience"
)

func TestWait(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // when done is closed
		want  bool
		takes time.Duration
	}{
		{"done from the start", 0, true, 0},
		{"done in time", 900 * time.Millisecond, true, 900 * time.Millisecond},
		{"done too late", 1100 * time.Millisecond, false, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				if tt.after == 0 {
					close(done)
				} else {
					time.AfterFunc(tt.after, func() { close(done) })
				}
				began := time.Now()
				if got := patience.Wait(done, time.Second); got != tt.want {
					t.Errorf("Wait returned %v", got)
				}
				if took := time.Since(began); took != tt.takes {
					t.Errorf("it took %v", took)
				}
				time.Sleep(tt.after) // until the timer has fired
			})
		})
	}
}
