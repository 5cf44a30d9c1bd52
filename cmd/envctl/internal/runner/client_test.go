package runner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
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

// A coordinator cannot choose times that make a flood of requests.
func TestTheTimesOfACoordinatorAreBounded(t *testing.T) {
	for n, want := range map[int]time.Duration{-1: time.Second, 30: 30 * time.Second, math.MaxInt: time.Hour, math.MaxInt / 2: time.Hour} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"runner_id":"lnch_1","poll_timeout_seconds":%d,"heartbeat_interval_seconds":%[1]d}`, n)
		}))
		r := &runner{client: &client{base: s.URL, http: s.Client(), log: hclog.NewNullLogger()}}
		if err := r.register(t.Context()); err != nil || r.wait != want || r.every != want {
			t.Errorf("%d s: polls wait %v, heartbeats come every %v, %v", n, r.wait, r.every, err)
		}
		s.Close()
	}
}
