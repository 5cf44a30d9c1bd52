package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// In a sandbox that is kept, execute-query is a durable command: it goes on when
// this program is killed, and its events stay to be read again. It has no standard
// input; a second command, the feed, brings it its lines as long as this program
// lives.

// queriesDir is the folder in App of the inputs of such queries, and queriesFile
// lists the prompts, one a line.
const (
	queriesDir  = "queries"
	queriesFile = "queries.jsonl"
)

// durable reports whether a script outlives this program. A script of the user's
// own reads its standard input, which cannot.
func (e *Environment) durable(script string) bool {
	return e.owner.kept && script == runnerscripts.ExecuteQuery &&
		len(e.cfg.Scripts.ExecuteQuery) == 0 && e.prim.Capabilities().Durable
}

// Durable reports whether a query can go on in the sandbox without this program, as
// Query.Detach asks for: the sandbox is kept and has durable commands, and the script is not one
// of the user's own.
func (e *Environment) Durable() bool { return e.durable(runnerscripts.ExecuteQuery) }

// startDurable starts a script that outlives this program, and its feed.
func (e *Environment) startDurable(ctx context.Context, args []string) (_ *durableProcess, err error) {
	dir := path.Join(e.prim.Paths().App, queriesDir, uuid.NewString())
	if err := e.prim.Mkdir(ctx, dir, 0o700); err != nil {
		return nil, err
	}
	proc, err := e.prim.Exec(ctx, primitives.Command{
		Args: append(args[:len(args):len(args)], "--input", dir), Durable: true, Env: []string{"HOME=" + e.prim.Paths().Home},
	})
	if err != nil {
		return nil, err
	}
	d := newDurable(ctx, proc)
	d.input = dir
	if d.feed, err = e.startFeed(ctx, args[0], dir); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.watching.Go(func() { d.watchFeed(context.WithoutCancel(ctx), e.hide) })
	return d, nil
}

// startFeed starts what brings lines to a durable script. The first one is the
// environment, which so is written down nowhere.
func (e *Environment) startFeed(ctx context.Context, runner, dir string) (primitives.Process, error) {
	env, err := json.Marshal(e.environ())
	if err != nil {
		return nil, err
	}
	feed, err := e.prim.Exec(ctx, primitives.Command{
		Args: []string{runner, "feed", dir}, Stdin: true, Env: []string{"HOME=" + e.prim.Paths().Home},
	})
	if err != nil {
		return nil, err
	}
	if _, err := feed.Stdin().Write(append(env, '\n')); err != nil {
		if exits(ctx, feed, primitives.DefaultGrace) {
			said := &redact.Tail{Hide: e.hide}
			_, _ = io.Copy(said, feed.Stderr())
			err = fmt.Errorf("%w: %s", err, redact.LastLines(said.String()))
		}
		return nil, errors.Join(fmt.Errorf("its input cannot be reached: %w", err), feed.Close())
	}
	return feed, nil
}

// durableProcess is a durable script with its feed as standard input. Unlike its
// handle, its Close ends it, unless it is let go of.
type durableProcess struct {
	primitives.Process
	feed  primitives.Process
	input string // the folder where feeds connect
	end   func() // ends the script

	watching sync.WaitGroup // of the feed

	mu      sync.Mutex
	letGo   bool
	unfed   error // why the feed cannot reach the script
	closing sync.Once
	err     error
}

func newDurable(ctx context.Context, proc primitives.Process) *durableProcess {
	ctx = context.WithoutCancel(ctx)
	return &durableProcess{Process: proc, end: func() { endProcess(ctx, proc) }}
}

// watchFeed ends a script that its feed does not reach: no input can arrive any more,
// and the script would wait for it.
func (d *durableProcess) watchFeed(ctx context.Context, hide redact.Redactor) {
	said := &redact.Tail{Hide: hide}
	_, _ = io.Copy(said, d.feed.Stderr())
	status, err := d.feed.Wait(ctx)
	if err != nil || status.Reason != primitives.ReasonExited || status.Code == 0 {
		return // it was ended, or the sandbox was, or the script
	}
	d.mu.Lock()
	d.unfed = fmt.Errorf("its input cannot be reached: %s", redact.LastLines(said.String()))
	d.mu.Unlock()
	d.end()
}

// unreached is why the feed cannot reach the script; nil if it can.
func (d *durableProcess) unreached() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unfed
}

// endProcess ends a durable command politely, and then by force.
func endProcess(ctx context.Context, proc primitives.Process) {
	for _, sig := range []primitives.Signal{primitives.SIGTERM, primitives.SIGKILL} {
		// One that has ended cannot be signalled, nor one in a sandbox that is
		// gone.
		if proc.Signal(ctx, sig) != nil || exits(ctx, proc, primitives.DefaultGrace) {
			return
		}
	}
}

// exits reports whether a process exits within a time.
func exits(ctx context.Context, proc primitives.Process, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	_, err := proc.Wait(ctx)
	return err == nil
}

// Stdin brings lines to the script through the feed.
func (d *durableProcess) Stdin() io.WriteCloser { return d.feed.Stdin() }

// leave makes Close let go of the script.
func (d *durableProcess) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.letGo = true
}

// Close ends the script and what belongs to it.
func (d *durableProcess) Close() error {
	d.closing.Do(func() {
		d.mu.Lock()
		letGo := d.letGo
		d.mu.Unlock()
		if !letGo {
			d.end()
		}
		if d.feed != nil { // else it could not be started
			d.err = d.feed.Close()
		}
		d.watching.Wait()
		d.err = errors.Join(d.err, d.Process.Close())
	})
	return d.err
}
