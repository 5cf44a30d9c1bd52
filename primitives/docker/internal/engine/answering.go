package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// The end of a sandbox must outlive the caller's context, and may take long. But it must not wait
// for a silent engine, so the engine is pinged meanwhile.

const (
	answerInterval = 2 * time.Second // between two pings
	pingTimeout    = 5 * time.Second // for each answer
)

// ErrSilent says that the engine can be reached but does not answer.
var ErrSilent = fmt.Errorf("%w: the Docker engine does not answer; restart it, or name another one in host or DOCKER_HOST", primitives.ErrUnavailable)

// WhileAnswering returns a context that ends, with ErrSilent as its cause, when the engine no
// longer answers pings. The returned function stops the pings.
func WhileAnswering(ctx context.Context, eng *client.Client) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		askEvery(ctx, func() bool {
			ping, stop := context.WithTimeout(ctx, pingTimeout)
			defer stop()
			_, _ = eng.Ping(ping) // an error is an answer, too
			if ping.Err() == nil || ctx.Err() != nil {
				return true
			}
			cancel(ErrSilent)
			return false
		})
	})
	return ctx, func() {
		cancel(nil)
		asking.Wait()
	}
}

// askEvery calls answers at intervals until the context ends or answers returns false.
func askEvery(ctx context.Context, answers func() bool) {
	tick := time.NewTicker(answerInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !answers() {
			return
		}
	}
}
