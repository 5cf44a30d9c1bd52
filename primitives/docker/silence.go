package docker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// What ends a sandbox outlives the context that it was called with, and may take
// its time. But it does not wait for an engine or a guest that is silent: those are
// asked now and then whether they are there.

// answerInterval is how often that is, fateTimeout how long they may take.
const answerInterval = 2 * time.Second

// errSilent says that the engine is there and does nothing.
var errSilent = fmt.Errorf("%w: the Docker engine does not answer; restart it, or name another one in host or DOCKER_HOST", primitives.ErrUnavailable)

// whileAnswering returns a context that ends, with errSilent as its cause, when the
// engine does not answer any more. The function ends the asking.
func whileAnswering(ctx context.Context, eng *client.Client) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		askEvery(ctx, func() bool {
			ping, stop := context.WithTimeout(ctx, fateTimeout)
			defer stop()
			_, _ = eng.Ping(ping) // an error is an answer, too
			if ping.Err() == nil || ctx.Err() != nil {
				return true
			}
			cancel(errSilent)
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

// endProcesses has the guest end all processes politely. One that does not answer is
// not waited for; its stream is cut.
func (s *Sandbox) endProcesses(ctx context.Context) (primitives.TerminateReport, error) {
	g := s.link.guest
	watched, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() {
		askEvery(watched, func() bool {
			answered := make(chan struct{})
			watching.Go(func() {
				_, _ = g.Poll(watched) // an error is an answer, too
				close(answered)
			})
			patience := time.NewTimer(fateTimeout)
			defer patience.Stop()
			select {
			case <-answered:
				return true
			case <-patience.C:
				s.link.cut()
				return false
			}
		})
	})
	report, err := g.Terminate(ctx)
	cancel()
	watching.Wait()
	return report, err
}

// hangUp has the guest end by itself, and with it the container, when Terminate has left
// it nothing to do. It reports whether it will.
func (s *Sandbox) hangUp() bool {
	return s.link.first && s.link.guest.HangUp()
}

// errSilentGuest says that the guest is there and does nothing.
var errSilentGuest = fmt.Errorf("%w: the guest does not answer", primitives.ErrUnavailable)

// cut ends the stream to a silent guest at once. One over a socket ends with the
// container.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && l.cause == nil {
		l.cause = errSilentGuest
		_ = l.conn.Close()
	}
}
