package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Fork makes n sessions that have the conversation and the workspace of this one as
// they are now, and go separate ways from then on: each with an ID of its own, with
// the events up to here under the same numbers, and with store.Record.Parent set to
// this session. They are open, they share the store and the configuration, and the
// caller must Close each. This session goes on with its sandbox.
//
// If there is a sandbox, each gets a copy of it; see environment.Environment.Fork. If
// there is none, or it cannot be copied, each makes a sandbox with its first prompt,
// with the workspace that was stored, as far as Config.MaxWorkspace allows. A
// workspace that is a folder of the user is copied, too, and the copies leave that
// folder alone; this needs a sandbox: [ErrNoEnvironment].
//
// It makes all of them or none. It is [ErrBusy] while a query runs or is queued, and
// prompts wait while it works. n below 1 is fs.ErrInvalid.
func (s *AgentSession) Fork(ctx context.Context, n int) ([]*AgentSession, error) {
	s.promptMu.Lock() // so no query begins
	defer s.promptMu.Unlock()
	if err := s.idle(); err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	if n < 1 {
		return nil, fmt.Errorf("fork: %w: %d sessions; ask for at least one", fs.ErrInvalid, n)
	}
	sandboxes, err := s.copySandbox(ctx, n)
	if err != nil {
		return nil, err
	}
	return s.branches(ctx, s.lastSeq(), sandboxes)
}

// branches puts a copy of the session as it was after the event last into the store for each
// of these sandboxes, which may be nil, and opens them all. It makes all of them or none.
func (s *AgentSession) branches(ctx context.Context, last uint64, sandboxes []sandbox) ([]*AgentSession, error) {
	made := make([]*AgentSession, 0, len(sandboxes))
	for i, sb := range sandboxes {
		c, err := s.branchOff(ctx, last, sb)
		if err == nil {
			made = append(made, c)
			continue
		}
		errs := []error{fmt.Errorf("fork: %w", err)}
		for _, sb := range sandboxes[i:] {
			if sb != nil {
				errs = append(errs, sb.Terminate(ctx))
			}
		}
		for _, c := range made {
			errs = append(errs, c.Destroy(context.WithoutCancel(ctx)))
		}
		return nil, errors.Join(errs...)
	}
	return made, nil
}

// idle returns why the session cannot be forked now, or nil. The caller holds
// promptMu.
func (s *AgentSession) idle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkLocked(); err != nil {
		return err
	}
	// The state, not the worker: for a reader of the events a query is over with its
	// last event.
	if s.state.Query != nil || len(s.state.Queued) > 0 {
		return ErrBusy
	}
	return nil
}

// copySandbox returns n copies of the sandbox, or n times nothing if there is none
// and what is needed is stored.
func (s *AgentSession) copySandbox(ctx context.Context, n int) ([]sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	live := s.live()
	if live == nil {
		if inPlace(s.cfg.Environment) {
			return nil, fmt.Errorf("fork: its workspace is a folder of yours, which is copied from a sandbox only: %w", ErrNoEnvironment)
		}
		return make([]sandbox, n), nil
	}
	copies, err := live.Fork(ctx, n)
	if errors.Is(err, errors.ErrUnsupported) && s.cfg.MaxWorkspace >= 0 {
		_, err := s.Sync(ctx)
		return make([]sandbox, n), s.lost("fork: store the workspace", live, err)
	}
	return copies, s.lost("fork", live, err)
}

// branch is a session that Fork has put into the store.
type branch struct {
	parent  string
	sandbox sandbox // may be nil
}

// events tells where the session comes from.
func (b *branch) events() []runnerscripts.Event {
	return []runnerscripts.Event{event(runnerscripts.TypeLog, "", runnerscripts.Log{
		Level: "info", Message: "what follows is another session's than what came before: " + b.parent,
	})}
}

// branchOff puts a copy of the session as it was after the event last into the
// store and opens it.
func (s *AgentSession) branchOff(ctx context.Context, last uint64, sb sandbox) (*AgentSession, error) {
	cfg := s.cfg
	cfg.ID = uuid.NewString()
	if sb != nil {
		cfg.ID = sb.SessionID()
	}
	cfg.Environment.Sandbox = withoutFolder(cfg.Environment.Sandbox)
	cfg.Environment.Name = "" // which only one sandbox can have
	rec, err := s.store.Load(ctx, s.id)
	if err != nil {
		return nil, err
	}
	err = s.store.Fork(ctx, s.id, last, store.Record{ID: cfg.ID, Agent: rec.Agent, Metadata: rec.Metadata, CreatedAt: time.Now()})
	if err != nil {
		return nil, err
	}
	c, err := openBranch(ctx, cfg, s.create, &branch{parent: s.id, sandbox: sb})
	if err != nil {
		return nil, errors.Join(err, s.store.Delete(context.WithoutCancel(ctx), cfg.ID))
	}
	return c, nil
}

// withoutFolder has a sandbox work in a folder of its own: the user's belongs to
// another session.
func withoutFolder(box environment.Sandbox) environment.Sandbox {
	box.Workspace, box.WorkspacePath = "", ""
	return box
}
