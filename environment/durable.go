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

// In a kept sandbox, execute-query is a durable command: it continues when this program is
// killed, and its output can be read again. A durable command has no standard input. A second
// command, the feed, sends it lines while this program lives.

// queriesDir is the folder in App for the inputs of durable queries, and queriesFile lists the
// prompts, one per line.
const (
	queriesDir  = "queries"
	queriesFile = "queries.jsonl"
)

// durable reports whether a script outlives this program. A user's own script does not: it reads
// standard input, which ends with this program.
func (e *Environment) durable(script string) bool {
	return e.owner.kept && script == runnerscripts.ExecuteQuery &&
		len(e.cfg.Scripts.ExecuteQuery) == 0 && e.prim.Capabilities().Durable
}

// Durable reports whether a query can continue in the sandbox without this program, as
// Query.Detach needs: the sandbox is kept and has durable commands, and the script is not the
// user's own.
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

// startFeed starts the command that sends lines to a durable script. The first line is the
// environment, so that it is never stored.
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

// durableProcess is a durable script with its feed as standard input. Unlike the Close of the
// script's handle, its Close ends the script, unless leave was called.
type durableProcess struct {
	primitives.Process
	feed  primitives.Process
	input string // the folder in which feeds connect
	end   func() // ends the script

	watching sync.WaitGroup // for watchFeed

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

// watchFeed ends a script that its feed cannot reach: the script would wait for input that never
// arrives.
func (d *durableProcess) watchFeed(ctx context.Context, hide redact.Redactor) {
	said := &redact.Tail{Hide: hide}
	_, _ = io.Copy(said, d.feed.Stderr())
	status, err := d.feed.Wait(ctx)
	if err != nil || status.Reason != primitives.ReasonExited || status.Code == 0 {
		return // the feed, the script or the sandbox was ended
	}
	d.mu.Lock()
	d.unfed = fmt.Errorf("its input cannot be reached: %s", redact.LastLines(said.String()))
	d.mu.Unlock()
	d.end()
}

// unreached returns why the feed cannot reach the script; nil if it can.
func (d *durableProcess) unreached() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unfed
}

// endProcess ends a durable command with SIGTERM, and after a grace period with SIGKILL.
func endProcess(ctx context.Context, proc primitives.Process) {
	for _, sig := range []primitives.Signal{primitives.SIGTERM, primitives.SIGKILL} {
		// Signal fails if the process has ended or the sandbox is gone.
		if proc.Signal(ctx, sig) != nil || exits(ctx, proc, primitives.DefaultGrace) {
			return
		}
	}
}

// exits reports whether a process exits within the given time.
func exits(ctx context.Context, proc primitives.Process, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	_, err := proc.Wait(ctx)
	return err == nil
}

// Stdin returns the feed's input, which the feed sends to the script.
func (d *durableProcess) Stdin() io.WriteCloser { return d.feed.Stdin() }

// leave makes Close keep the script running.
func (d *durableProcess) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.letGo = true
}

// Close ends the script, unless leave was called, and the feed.
func (d *durableProcess) Close() error {
	d.closing.Do(func() {
		d.mu.Lock()
		letGo := d.letGo
		d.mu.Unlock()
		if !letGo {
			d.end()
		}
		if d.feed != nil { // nil if it could not be started
			d.err = d.feed.Close()
		}
		d.watching.Wait()
		d.err = errors.Join(d.err, d.Process.Close())
	})
	return d.err
}
