package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/internal/tree"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Rewind returns the conversation and the workspace to a checkpoint of [State]. The next prompt
// creates a new sandbox from it. Rewind removes no events and loses nothing: it first takes a
// checkpoint of the current sandbox, to which a later Rewind can return.
//
// It returns [ErrBusy] while a query runs or is queued, fs.ErrNotExist for an unknown number,
// and errors.ErrUnsupported if the files of the workspace are not stored; see
// Config.MaxWorkspace.
func (s *AgentSession) Rewind(ctx context.Context, number int) error {
	if err := s.rewind(ctx, number); err != nil {
		return fmt.Errorf("rewind: %w", err)
	}
	return nil
}

func (s *AgentSession) rewind(ctx context.Context, number int) error {
	if _, err := s.numbered(number); err != nil {
		return err
	}
	if err := s.idle(); err != nil {
		return err
	}
	if err := s.TerminateEnvironment(ctx); err != nil {
		return err
	}
	s.promptMu.Lock() // no query may start meanwhile
	defer s.promptMu.Unlock()
	if err := s.idle(); err != nil {
		return err
	}
	if s.live() != nil {
		return ErrBusy // a prompt was accepted meanwhile
	}
	return s.append(ctx, event(runnerscripts.TypeRewound, "", runnerscripts.Rewound{Checkpoint: number}))
}

// ForkFrom is like [AgentSession.Fork], but the new sessions start from a checkpoint. Each
// creates a sandbox with its first prompt. A query of this session may run meanwhile. The
// errors are those of Fork and [AgentSession.Rewind].
func (s *AgentSession) ForkFrom(ctx context.Context, number, n int) ([]*AgentSession, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	c, err := s.numbered(number)
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	if n < 1 {
		return nil, fmt.Errorf("fork: %w: %d sessions; ask for at least one", fs.ErrInvalid, n)
	}
	return s.branches(ctx, c.Seq, make([]sandbox, n))
}

// Changes returns the changes in the workspace from one checkpoint to another, sorted by path:
// files, links and permissions. If to is zero, it means the last checkpoint; see
// [AgentSession.Sync]. The errors are those of [AgentSession.Rewind].
func (s *AgentSession) Changes(ctx context.Context, from, to int) ([]environment.Change, error) {
	found, _, _, err := s.compare(ctx, from, to)
	if err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	changes := make([]environment.Change, 0, len(found))
	for _, c := range found {
		change := environment.Change{Kind: environment.Modified, Path: c.Path}
		if c.Old == nil {
			change.Kind = environment.Created
		} else {
			change.OldMode, change.OldSize = c.Old.Mode, c.Old.Size
		}
		if c.New == nil {
			change.Kind = environment.Deleted
		} else {
			change.NewMode, change.NewSize = c.New.Mode, c.New.Size
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// Patch writes the changes from one checkpoint to another as a patch for "git apply"; see
// [AgentSession.Changes]. Without changes it writes nothing.
func (s *AgentSession) Patch(ctx context.Context, w io.Writer, from, to int) error {
	if err := s.patch(ctx, w, from, to); err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	return nil
}

func (s *AgentSession) patch(ctx context.Context, w io.Writer, from, to int) (err error) {
	changes, a, b, err := s.compare(ctx, from, to)
	if err != nil {
		return err
	}
	changed := make(map[string]bool, len(changes))
	for _, c := range changes {
		changed[c.Path] = true
	}
	unpack := func(root store.Digest) (state *workspace.Snapshot, err error) {
		only := func(name string) bool { return changed[name] }
		err = archive.Pipe(
			func(w io.Writer) error { return tree.Pack(ctx, s.blobs(), root, only, w) },
			func(r io.Reader) (err error) { state, err = workspace.Read(r, true, nil); return err },
		)
		return state, err
	}
	old, err := unpack(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	current, err := unpack(b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, current.Close()) }()
	return workspace.WritePatch(ctx, w, old, current, workspace.Compare(old, current))
}

// compare returns the changes between two checkpoints, and both workspaces.
func (s *AgentSession) compare(ctx context.Context, from, to int) (_ []tree.Change, old, current store.Digest, _ error) {
	if err := s.check(); err != nil {
		return nil, "", "", err
	}
	old, current, err := s.pair(from, to)
	if err != nil {
		return nil, "", "", err
	}
	changes, err := tree.Compare(ctx, s.blobs(), old, current)
	return changes, old, current, err
}

// pair returns the workspaces of two checkpoints.
func (s *AgentSession) pair(from, to int) (old, current store.Digest, _ error) {
	s.mu.Lock()
	to = cmp.Or(to, s.state.Checkpoint)
	s.mu.Unlock()
	a, err := s.numbered(from)
	if err != nil {
		return "", "", err
	}
	b, err := s.numbered(to)
	return store.Digest(a.Workspace), store.Digest(b.Workspace), err
}
