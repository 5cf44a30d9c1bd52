package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Fork creates n sessions with the current conversation and workspace of this session. Each has
// its own ID, the events up to here under the same numbers, the metadata but for the keys by which
// runners and delegating agents find their sessions, and store.Record.Parent set to this
// session. They are open and share the store and the configuration; the caller must Close each, or
// its [Host] does.
// This session continues with its sandbox.
//
// If there is a sandbox, each session gets a copy of it; see environment.Environment.Fork. If
// there is none, or it cannot be copied, each session creates a sandbox with its first prompt,
// from the stored workspace, unless Config.NoFiles is set. If the workspace is a folder
// of the user, the sessions get copies of it and do not change the folder; this needs a
// sandbox: [ErrNoEnvironment].
//
// Fork creates all n sessions or none. It returns [ErrBusy] while a query runs or is queued;
// prompts wait while it works. n below 1 is fs.ErrInvalid.
func (s *AgentSession) Fork(ctx context.Context, n int) ([]*AgentSession, error) {
	s.promptMu.Lock() // no query may start meanwhile
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

// branches adds a copy of the session up to the event last to the store for each of the
// sandboxes, which may be nil, and opens the copies. It creates all of them or none.
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

// idle returns an error if the session cannot be forked or rewound now. The result stays true
// only while the caller holds promptMu.
func (s *AgentSession) idle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkLocked(); err != nil {
		return err
	}
	// Check the state, not the worker: for readers of the events a query ends with its last
	// event.
	if s.state.Query != nil || len(s.state.Queued) > 0 {
		return ErrBusy
	}
	return nil
}

// copySandbox returns n copies of the sandbox, or n nils if there is no sandbox and the store
// has everything that the copies need.
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
	if errors.Is(err, errors.ErrUnsupported) && !s.cfg.NoFiles {
		_, err := s.Sync(ctx)
		return make([]sandbox, n), s.wrapSandboxErr("fork: store the workspace", live, err)
	}
	return copies, s.wrapSandboxErr("fork", live, err)
}

// branch is a session that Fork has added to the store, or one whose sandbox was moved.
type branch struct {
	parent  string  // empty if the sandbox was moved
	sandbox sandbox // may be nil
	pruned  []int   // checkpoints of the parent, some after the fork's own
}

// events returns the events that name the parent, if there is one, and that end the open items
// of the state.
func (b *branch) events(st State) []runnerscripts.Event {
	if b.parent == "" {
		return leftovers(st, reasonMoved, lost)
	}
	forked := event(runnerscripts.TypeForked, "", runnerscripts.Forked{From: b.parent})
	events := append([]runnerscripts.Event{forked}, leftovers(st, reasonForked, cancelled)...)
	// The parent has pruned them after the event up to which the log was copied.
	missing := slices.DeleteFunc(b.pruned, func(n int) bool { return n > len(st.Checkpoints) || st.checkpoint(n).Pruned })
	if len(missing) > 0 {
		events = append(events, event(runnerscripts.TypeCheckpointsPruned, "", runnerscripts.CheckpointsPruned{Numbers: missing}))
	}
	return events
}

// ownKeys are the keys of metadata by which a program finds the session that it has started: a runner that of a coordinator's
// session, and an agent those that it has delegated to. A fork is none of them.
var ownKeys = []string{"coordinator_session", DelegatedBy, "delegate"}

// branchOff adds a copy of the session up to the event last to the store and opens it.
func (s *AgentSession) branchOff(ctx context.Context, last uint64, sb sandbox) (*AgentSession, error) {
	cfg := s.cfg
	cfg.ID = uuid.NewString()
	if sb != nil {
		cfg.ID = sb.SessionID()
	}
	cfg.Environment.Sandbox = withoutFolder(cfg.Environment.Sandbox)
	cfg.Environment.Name = "" // a name is unique to one sandbox
	rec, err := s.store.Load(ctx, s.id)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(rec.Metadata, func(key, _ string) bool { return slices.Contains(ownKeys, key) })
	err = s.store.Fork(ctx, s.id, last, store.Record{ID: cfg.ID, Agent: rec.Agent, Metadata: rec.Metadata, CreatedAt: time.Now()})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	pruned := s.state.pruned()
	s.mu.Unlock()
	c, err := openBranch(ctx, cfg, s.create, &branch{parent: s.id, sandbox: sb, pruned: pruned})
	if err != nil {
		return nil, errors.Join(err, s.store.Delete(context.WithoutCancel(ctx), cfg.ID))
	}
	if cfg.forked != nil {
		if err := cfg.forked(c); err != nil {
			return nil, errors.Join(err, c.Destroy(context.WithoutCancel(ctx)))
		}
	}
	return c, nil
}

// withoutFolder replaces the user's folder, which belongs to another session, with a folder of
// the sandbox.
func withoutFolder(box environment.Sandbox) environment.Sandbox {
	if box.Workspace != "" {
		box.Workspace, box.WorkspacePath = "", ""
	}
	return box
}
