package session

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Rewind returns the conversation and the workspace to a checkpoint of [State]. The next prompt
// creates a new sandbox from it. Rewind removes no events and loses nothing: it first takes a
// checkpoint of the current sandbox, to which a later Rewind can return.
//
// It returns [ErrBusy] while a query runs or is queued, fs.ErrNotExist for an unknown number,
// [ErrPruned] for an old periodic one, and errors.ErrUnsupported if the files of the workspace are not stored.
func (s *AgentSession) Rewind(ctx context.Context, number int) error {
	if err := s.rewind(ctx, number); err != nil {
		return fmt.Errorf("rewind: %w", err)
	}
	return nil
}

func (s *AgentSession) rewind(ctx context.Context, number int) error {
	if _, err := s.checkpointWithFiles(number); err != nil {
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
	if _, err := s.checkpointWithFiles(number); err != nil {
		return err // a query has pruned it meanwhile
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
	s.pruning.Lock()
	defer s.pruning.Unlock()
	c, err := s.checkpointWithFiles(number)
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	if n < 1 {
		return nil, fmt.Errorf("fork: %w: %d sessions; ask for at least one", fs.ErrInvalid, n)
	}
	return s.branches(ctx, c.Seq, make([]sandbox, n))
}

// Changes returns what has changed in the workspace from one checkpoint to another, sorted by
// path: files, links and permissions. If to is zero, it means State.Checkpoint, which lacks
// later changes in the sandbox; see [AgentSession.Sync]. The errors are those of
// [AgentSession.Rewind].
func (s *AgentSession) Changes(ctx context.Context, from, to int) ([]environment.Change, error) {
	state, err := s.present()
	if err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	return differences(ctx, blobs{s.store, s.id}, state, from, to)
}

// Patch writes the changes from one checkpoint to another, as [AgentSession.Changes] finds them,
// as a patch for "git apply". Without changes it writes nothing.
func (s *AgentSession) Patch(ctx context.Context, w io.Writer, from, to int) error {
	state, err := s.present()
	if err == nil {
		err = patch(ctx, blobs{s.store, s.id}, state, w, from, to)
	}
	if err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	return nil
}

// present returns the state of an open session.
func (s *AgentSession) present() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.clone(), s.checkLocked()
}

// ReadChanges is [AgentSession.Changes] for a stored session. It does not open the session, so
// another program may drive it meanwhile. Its errors are those of Changes and [ReadState].
func ReadChanges(ctx context.Context, st store.Store, id string, from, to int) ([]environment.Change, error) {
	state, err := ReadState(ctx, st, id)
	if err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	return differences(ctx, blobs{st, id}, state, from, to)
}

func differences(ctx context.Context, in blobs, state State, from, to int) ([]environment.Change, error) {
	found, err := compare(ctx, in, state, from, to)
	if err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	changes := make([]environment.Change, 0, len(found))
	for _, c := range found {
		change := environment.Change{Kind: environment.Modified, Path: c.Path, PathBytes: workspace.NotUTF8(c.Path)}
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

// ReadPatch is [AgentSession.Patch] for a stored session, which it does not open. Its errors are
// those of [ReadChanges] and of w.
func ReadPatch(ctx context.Context, st store.Store, id string, w io.Writer, from, to int) error {
	state, err := ReadState(ctx, st, id)
	if err == nil {
		err = patch(ctx, blobs{st, id}, state, w, from, to)
	}
	if err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	return nil
}

// ReadWorkspace writes the files of the checkpoint to of a stored session to w, as a tar archive: all files, or, if from is not
// zero, those that are new or changed since that checkpoint; [ReadChanges] says what was removed. It does not open the session.
// If to is zero, it means State.Checkpoint. Its errors are those of ReadChanges and of w.
func ReadWorkspace(ctx context.Context, st store.Store, id string, w io.Writer, from, to int) error {
	if err := readWorkspace(ctx, st, id, w, from, to); err != nil {
		return fmt.Errorf("read the workspace: %w", err)
	}
	return nil
}

func readWorkspace(ctx context.Context, st store.Store, id string, w io.Writer, from, to int) error {
	state, err := ReadState(ctx, st, id)
	if err != nil {
		return err
	}
	in := blobs{st, id}
	c, err := state.withFiles(cmp.Or(to, state.Checkpoint))
	if err != nil {
		return err
	}
	var skip func(string) bool
	if from != 0 {
		changes, err := compare(ctx, in, state, from, to)
		if err != nil {
			return err
		}
		changed := map[string]bool{}
		for _, c := range changes {
			for name := c.Path; c.New != nil && name != "." && !changed[name]; name = path.Dir(name) {
				changed[name] = true
			}
		}
		skip = func(name string) bool { return !changed[name] }
	}
	return workspace.Pack(ctx, in, workspace.Digest(c.Workspace), skip, w)
}

func patch(ctx context.Context, in blobs, state State, w io.Writer, from, to int) error {
	changes, err := compare(ctx, in, state, from, to)
	if err != nil {
		return err
	}
	return workspace.WritePatch(ctx, w, in, changes)
}

// compare returns the differences between two checkpoints.
func compare(ctx context.Context, in blobs, state State, from, to int) ([]workspace.Change, error) {
	a, err := state.withFiles(from)
	if err != nil {
		return nil, err
	}
	b, err := state.withFiles(cmp.Or(to, state.Checkpoint))
	if err != nil {
		return nil, err
	}
	return workspace.Compare(ctx, in, workspace.Digest(a.Workspace), workspace.Digest(b.Workspace), nil)
}
