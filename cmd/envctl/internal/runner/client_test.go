package runner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Attempts go on for as long as the coordinator is away, and become rarer: one in 15 seconds on average.
func TestAttemptsBecomeRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c := &client{log: hclog.NewNullLogger()}
		n := 0
		err := c.repeat(ctx, "test", func() error { n++; return errors.New("away") })
		if !errors.Is(err, context.DeadlineExceeded) || n < 3600/5/2 || n > 3600/5*2 {
			t.Errorf("%d attempts in an hour: %v", n, err)
		}
	})
}
