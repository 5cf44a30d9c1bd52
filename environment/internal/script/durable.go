package script

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
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// In a kept sandbox, execute-query is a durable command: it continues when this program is
// killed, and its output can be read again. A durable command has no standard input. A second
// command, the feed, sends it lines while this program lives.

// QueriesDir is the folder in App for the inputs of durable queries.
const QueriesDir = "queries"

// Durable reports whether a script outlives this program. A user's own script does not: it reads
// standard input, which ends with this program.
func (h *Host) Durable(script string) bool {
	return h.Kept && script == runnerscripts.ExecuteQuery &&
		len(h.Own[script]) == 0 && h.Sandbox.Capabilities().Durable
}

// startDurable starts a script that outlives this program, and its feed.
func (h *Host) startDurable(ctx context.Context, args []string) (_ *durableProcess, err error) {
	dir := path.Join(h.Sandbox.Paths().App, QueriesDir, uuid.NewString())
	if err := h.Sandbox.Mkdir(ctx, dir, 0o700); err != nil {
		return nil, err
	}
	proc, err := h.Sandbox.Exec(ctx, primitives.Command{
		Args: append(args[:len(args):len(args)], "--input", dir), Durable: true, Env: []string{"HOME=" + h.Sandbox.Paths().Home},
	})
	if err != nil {
		return nil, err
	}
	d := newDurable(ctx, proc)
	d.input = dir
	if d.feed, err = h.startFeed(ctx, args[0], dir); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.watching.Go(func() { d.watchFeed(context.WithoutCancel(ctx), h.Events.Hide) })
	return d, nil
}

// startFeed starts the command that sends lines to a durable script. The first line is the
// environment, so that it is never stored.
func (h *Host) startFeed(ctx context.Context, runner, dir string) (primitives.Process, error) {
	env, err := json.Marshal(h.environ())
	if err != nil {
		return nil, err
	}
	feed, err := h.Sandbox.Exec(ctx, primitives.Command{
		Args: []string{runner, "feed", dir}, Stdin: true, Env: []string{"HOME=" + h.Sandbox.Paths().Home},
	})
	if err != nil {
		return nil, err
	}
	if _, err := feed.Stdin().Write(append(env, '\n')); err != nil {
		if Exits(ctx, feed, primitives.DefaultGrace) {
			said := &redact.Tail{Hide: h.Events.Hide}
			_, _ = io.Copy(said, feed.Stderr())
			err = fmt.Errorf("%w: %s", err, tail.Of(said.String()))
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
	d.unfed = fmt.Errorf("its input cannot be reached: %s", tail.Of(said.String()))
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
		if proc.Signal(ctx, sig) != nil || Exits(ctx, proc, primitives.DefaultGrace) {
			return
		}
	}
}

// Exits reports whether a process exits within the given time.
func Exits(ctx context.Context, proc primitives.Process, most time.Duration) bool {
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

// Reattach returns the durable execute-query with an ID, whose feeds connect at input, with its output from a position on.
// It may have ended. The caller releases it.
func (h *Host) Reattach(ctx context.Context, id, input string, from int64) (*Process, error) {
	args, err := h.command(ctx, runnerscripts.ExecuteQuery)
	if err != nil {
		return nil, err
	}
	// ctx bounds only this call, not the process, as in Start.
	life, forget := context.WithCancel(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, forget)
	defer starting()
	proc, err := primitives.Reattach(life, h.Sandbox, id, primitives.Offset{Stdout: from})
	if err != nil {
		forget()
		return nil, err
	}
	d := newDurable(ctx, proc)
	d.input = input
	if d.feed, err = h.startFeed(life, args[0], input); err != nil {
		d.leave()
		err = errors.Join(err, d.Close())
		forget()
		return nil, err
	}
	p := follow(ctx, runnerscripts.ExecuteQuery, d, from, h.MaxLine, h.Events.Hide, forget)
	p.Adopted = true
	if err := h.adopt(p); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Durable returns the ID of a durable script and the folder in which its feeds connect; ok is false for other scripts.
func (p *Process) Durable() (id, input string, ok bool) {
	d, ok := p.proc.(*durableProcess)
	if !ok {
		return "", "", false
	}
	return d.ID(), d.input, true
}
