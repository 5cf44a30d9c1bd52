package main

import (
	"context"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// lasting is a sandbox that runs until over.
type lasting struct {
	primitives.EnvironmentPrimitive
	over time.Time
}

func (l lasting) Poll(context.Context) (primitives.State, error) {
	if time.Now().Before(l.over) {
		return primitives.State{Status: primitives.StatusRunning}, nil
	}
	return primitives.State{Status: primitives.StatusTerminated}, nil
}

func TestAwaitStaysWhileAClientIsAttached(t *testing.T) {
	const stay = 2 * time.Second
	for _, tt := range []struct {
		name        string
		stay        time.Duration
		until       time.Duration // at least
		come, leave time.Duration // of another guest; 0: none comes
		over        time.Duration // when the sandbox ends; 0 is never
		want        time.Duration
	}{
		{name: "no client comes", stay: stay, want: stay},
		{name: "a client comes at the last moment", stay: stay, come: 1900 * time.Millisecond, leave: 7900 * time.Millisecond, want: 9500 * time.Millisecond},
		{name: "not before it is so old", stay: stay, until: 5 * time.Second, want: 5 * time.Second},
		{name: "the sandbox is over from the start", stay: stay, over: -1, want: 0},
		{name: "the sandbox ends", stay: -1, over: 3 * time.Second, want: 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				app := t.TempDir()
				first, other := openTestGuests(t, app), openTestGuests(t, app)
				began := time.Now()
				sandbox := lasting{over: began.Add(tt.over)}
				if tt.over == 0 {
					sandbox.over = began.Add(time.Hour)
				}
				var visit sync.WaitGroup
				defer visit.Wait()
				if tt.come > 0 {
					visit.Go(func() {
						<-time.After(tt.come)
						if err := other.join(); err != nil {
							t.Error(err)
						}
						<-time.After(tt.leave - tt.come)
						_ = other.Close()
					})
				}
				if err := first.awaitIdle(t.Context(), sandbox, tt.stay, began.Add(tt.until)); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != tt.want {
					t.Errorf("it took %v, want %v", took, tt.want)
				}
			})
		})
	}
}

func openTestGuests(t *testing.T, app string) *guests {
	t.Helper()
	g, err := openGuests(app)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func TestASandboxThatIsLostWasNotTerminated(t *testing.T) {
	sandbox, err := local.New(t.Context(), local.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sandbox.Close() })
	if err := os.RemoveAll(sandbox.Paths().Session); err != nil {
		t.Fatal(err)
	}
	err = openTestGuests(t, t.TempDir()).awaitIdle(t.Context(), sandbox, -1, time.Time{})
	if err == nil || t.Context().Err() != nil {
		t.Errorf("awaitIdle = %v, want an error: nobody has terminated the sandbox", err)
	}
}
