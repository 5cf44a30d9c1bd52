package docker

import (
	"context"
	"sync"
	"time"

	"github.com/docker/docker/client"
	"github.com/hashicorp/go-hclog"
)

// sweepInterval is how long a program leaves it at one sweep of an engine: whoever
// makes hundreds of sandboxes need not look through all of them for each. One that is
// broken off, because its sandbox is closed, is made up for by the next start.
const sweepInterval = time.Minute

// sweeps are when this program last began to sweep an engine, by its host.
//
//nolint:gochecknoglobals // of the process: what one sandbox has looked for, others need not
var sweeps = struct {
	mu    sync.Mutex
	began map[string]time.Time
}{began: map[string]time.Time{}}

// sweep is what New does of GC beside its own work.
type sweep struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startSweep starts to remove what GC removes, unless this program has just done so: then
// it returns nil. What goes wrong is told to the logger only.
func startSweep(ctx context.Context, eng *client.Client, log hclog.Logger) *sweep {
	host := eng.DaemonHost()
	if !due(host) {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &sweep{cancel, make(chan struct{})}
	go func() {
		defer close(s.done)
		g := &collector{eng: eng, inNew: true, log: log}
		_, err := g.collect(ctx)
		if ctx.Err() != nil {
			forgetSweep(host)
			return
		}
		if err != nil && log != nil {
			log.Warn("orphans cannot be removed", "type", backend, "error", err)
		}
	}()
	return s
}

// due reports whether an engine is to be swept, which then counts as done.
func due(host string) bool {
	sweeps.mu.Lock()
	defer sweeps.mu.Unlock()
	if began, ok := sweeps.began[host]; ok && time.Since(began) < sweepInterval {
		return false
	}
	sweeps.began[host] = time.Now()
	return true
}

// forgetSweep has the next start do it.
func forgetSweep(host string) {
	sweeps.mu.Lock()
	defer sweeps.mu.Unlock()
	delete(sweeps.began, host)
}

// stop ends it after what it is removing, and waits for that.
func (s *sweep) stop() {
	if s != nil {
		s.cancel()
		<-s.done
	}
}
