package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"path"
	"sync"
	"time"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// plain works in a container without a guest, by execs of the engine and the
// shell and commands of the image. It is a worker.
//
// Commands are execs of their own. Everything else is done by control shells, see
// shell: one that is always there, which tells the first process that the handle
// lives and ends its commands when it dies, and some that come and go with the
// work.
//
// Since release 24 engines tell the status of a command only when they have read its
// outputs, for which they take two seconds where other processes hold them: Wait is late
// by that, and what those print later is lost.
type plain struct {
	eng    *client.Client
	link   *link
	paths  primitives.Paths
	image  plainImage
	handle string // stands in the environment of every command of this handle

	presence   *shell
	background sync.WaitGroup
	committing sync.Mutex // a write with a revision compares and renames

	mu        sync.Mutex
	closed    bool
	idle      map[string][]*shell
	processes map[*plainProcess]struct{}
	closing   sync.Once
}

// Marks in the environment of commands.
const (
	plainHandleMark = "AGENTENV_HANDLE"
	plainExecMark   = "AGENTENV_EXEC"
)

// joinPlain makes the handle of a container that runs without a guest.
func joinPlain(ctx context.Context, eng *client.Client, id, workspace string) (*link, error) {
	outlives := context.WithoutCancel(ctx)
	l := &link{container: id}
	l.fate = func() (primitives.State, error) {
		ctx, cancel := context.WithTimeout(outlives, fateTimeout)
		defer cancel()
		return fate(ctx, eng, id)
	}
	p := &plain{
		eng: eng, link: l, handle: rand.Text(), paths: plainPaths(workspace),
		idle: map[string][]*shell{}, processes: map[*plainProcess]struct{}{},
	}
	var err error
	if p.presence, err = p.openShell(ctx, "", plainHandleMark+"="+p.handle); err != nil {
		return nil, p.explain(ctx, err)
	}
	if err := p.inspectImage(ctx); err != nil {
		return nil, errors.Join(err, p.Close()) //nolint:contextcheck // ending commands must outlast every context
	}
	l.worker = p
	return l, nil
}

// plainPaths are the folders of a container without a guest.
func plainPaths(workspace string) primitives.Paths {
	paths := primitives.PathsIn(path.Join(guestRoot, "plain"))
	if workspace != "" {
		paths.Workspace = workspace
	}
	return paths
}

// ID returns the container's identity; the Sandbox knows its name.
func (p *plain) ID() string { return p.link.container }

func (p *plain) Paths() primitives.Paths { return p.paths }

func (p *plain) Capabilities() primitives.Capabilities {
	return primitives.Capabilities{
		OS: "linux", Arch: p.link.arch, PTY: p.image.terminals, Users: true,
		TreeKill: primitives.TreeKillSweep, Note: p.image.note,
	}
}

// Watch is not possible: an image has nothing that watches files.
func (p *plain) Watch(_ context.Context, dir string, _ primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
	return nil, p.fail("watch", dir, p.unsupported("files cannot be watched"))
}

// Reattach is not possible: nobody in the container keeps output.
func (p *plain) Reattach(_ context.Context, id string, _ primitives.Offset) (primitives.Process, error) {
	return nil, p.fail("reattach", id, p.unsupported("there are no durable commands"))
}

func (p *plain) unsupported(what string) error {
	return fmt.Errorf("%w: %s without a guest; set runner to the envrunner program for the engine's platform", errors.ErrUnsupported, what)
}

// Poll is the Sandbox's.
func (p *plain) Poll(context.Context) (primitives.State, error) { return p.link.fate() }

func (p *plain) fail(op, target string, err error) error { return wrap(op, target, err) }

// Err says why nothing can be done any more.
func (p *plain) Err() error { return p.usable() }

// usable says why nothing can be done any more, as far as is known.
func (p *plain) usable() error {
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	if p.link.cause != nil {
		return p.link.cause
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("%w: this handle was closed", primitives.ErrUnavailable)
	}
	return nil
}

// lasting asks the engine whether the container has ended, and gives it a moment
// to notice: the ends of streams may be ahead. It returns nil while it runs.
func (p *plain) lasting() error {
	if err := p.usable(); err != nil {
		return err
	}
	tick := time.NewTicker(fatePause)
	defer tick.Stop()
	for range fateAttempts {
		state, err := p.link.fate()
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
		case state.Status == primitives.StatusTerminated:
			return p.ended(primitives.ErrTerminated)
		case state.Status != primitives.StatusRunning && state.Status != primitives.StatusPaused:
			return p.ended(errGone)
		}
		<-tick.C
	}
	return nil
}

// ended keeps the reason for the end.
func (p *plain) ended(cause error) error {
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	if p.link.cause == nil {
		p.link.cause = cause
	}
	return p.link.cause
}

// Close ends the handle's commands and its shells.
func (p *plain) Close() error {
	var err error
	p.closing.Do(func() { err = p.close() })
	return err
}

func (p *plain) close() error {
	var errs []error
	var wait sync.WaitGroup
	var mu sync.Mutex
	for _, proc := range p.running() {
		wait.Go(func() {
			err := proc.Close()
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		})
	}
	wait.Wait()
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, shells := range idle {
		for _, s := range shells {
			_ = s.conn.Close() // the shell ends with its input
		}
	}
	// It does not take what runs in the background for abandoned.
	_ = p.presence.send("bye")
	_ = p.presence.conn.Close()
	p.background.Wait()
	return errors.Join(errs...)
}

// running are the handle's processes that were not closed.
func (p *plain) running() []*plainProcess {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*plainProcess, 0, len(p.processes))
	for proc := range p.processes {
		list = append(list, proc)
	}
	return list
}
