package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// What ends a sandbox outlives the context that it was called with, and may take
// its time. But it does not wait for an engine that is silent: that is asked now and
// then whether it is there.

const (
	answerInterval = 2 * time.Second // between two questions
	pingTimeout    = 5 * time.Second // of each answer
)

// ErrSilent says that the engine is there and does nothing.
var ErrSilent = fmt.Errorf("%w: the Docker engine does not answer; restart it, or name another one in host or DOCKER_HOST", primitives.ErrUnavailable)

// WhileAnswering returns a context that ends, with ErrSilent as its cause, when the
// engine does not answer any more. The function ends the asking.
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

// askEvery asks until the context ends or there is no answer.
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
