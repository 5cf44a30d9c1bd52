package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// periodicAge is how long a periodic checkpoint keeps its files; see Config.KeepPeriodic.
const periodicAge = 24 * time.Hour

// prunable returns the numbers of the periodic checkpoints beyond the newest keep, and of older ones
// than periodicAge. The head, one from which a rewind has gone on, and the last one before it keep
// their files.
func (s *State) prunable(keep int, now time.Time) []int {
	branched := map[int]bool{len(s.Checkpoints): true} // after a rewind, the last one is not the head
	for _, c := range s.Checkpoints {
		if c.Parent != c.Number-1 {
			branched[c.Parent], branched[c.Number-1] = true, true
		}
	}
	var old []int
	newer := 0
	for _, c := range slices.Backward(s.Checkpoints) {
		if c.Reason != runnerscripts.CheckpointPeriodic || c.Pruned {
			continue
		}
		if newer++; (newer > keep || now.Sub(c.Time) > periodicAge) && c.Number != s.Checkpoint && !branched[c.Number] {
			old = append(old, c.Number)
		}
	}
	slices.Reverse(old)
	return old
}

// pruned returns the numbers of the checkpoints whose files were removed.
func (s *State) pruned() []int {
	var numbers []int
	for _, c := range s.Checkpoints {
		if c.Pruned {
			numbers = append(numbers, c.Number)
		}
	}
	return numbers
}

func (s *State) applyPruned(ev runnerscripts.Event) {
	p, ok := decode[runnerscripts.CheckpointsPruned](ev)
	if !ok {
		return
	}
	s.Checkpoints = slices.Clone(s.Checkpoints) // which clones of the state share
	for _, number := range p.Numbers {
		if c := s.checkpoint(number); c.Number > 0 {
			s.Checkpoints[number-1].Pruned = true
		}
	}
	s.Size = max(s.Size-p.Freed, 0)
}

// prunedError says which checkpoints next to a pruned one have their files.
func (s *State) prunedError(number int) error {
	has := func(c Checkpoint) bool { return !c.Pruned && c.Workspace != "" }
	var near []string
	for _, c := range slices.Backward(s.Checkpoints[:number-1]) {
		if has(c) {
			near = append(near, fmt.Sprint(c.Number))
			break
		}
	}
	if i := slices.IndexFunc(s.Checkpoints[number:], has); i >= 0 {
		near = append(near, fmt.Sprint(number+i+1))
	}
	return fmt.Errorf("%w: checkpoint %d was a periodic one; use one of those next to it: %s", ErrPruned, number, strings.Join(near, ", "))
}

// prune removes what only old periodic checkpoints need. The event comes first: if the program dies
// meanwhile, no checkpoint lacks files without saying so, and the next pruning removes them.
//
// The caller holds saving, since it has stored the state of the sandbox: no checkpoint may be taken
// with what is removed, and what the index of its states has is kept.
func (s *AgentSession) prune(ctx context.Context, live *liveSandbox) error {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	s.mu.Lock()
	st := s.state.clone()
	s.mu.Unlock()
	keep := s.cfg.KeepPeriodic
	old := st.prunable(keep, time.Now())
	// All that is kept is listed to find what is not needed, so several are pruned at once.
	if keep < 0 || len(old) < max(keep/4, 1) {
		return nil
	}
	garbage, freed, err := s.garbage(ctx, st, old, live.transcript)
	if err != nil {
		return err
	}
	if live.states != nil {
		live.states.Spare(garbage)
	}
	err = s.append(ctx, event(runnerscripts.TypeCheckpointsPruned, "", runnerscripts.CheckpointsPruned{Numbers: old, Freed: freed}))
	if err != nil {
		return err
	}
	s.removed = false
	err = s.store.RemoveBlobs(context.WithoutCancel(ctx), s.id, digests(garbage)...)
	s.removed = err == nil
	return err
}

// garbage returns the blobs that only pruned checkpoints, and those to be pruned now, need. freed is
// the size of those of the workspaces to be pruned now.
func (s *AgentSession) garbage(ctx context.Context, st State, old []int, transcript string) (_ workspace.Sizes, freed int64, err error) {
	kept, garbage := make(workspace.Sizes), make(workspace.Sizes)
	for _, d := range st.attached { // a file of the workspace may have the same content
		kept[workspace.Digest(d)] = 0
	}
	for _, c := range st.Checkpoints {
		if c.Pruned || slices.Contains(old, c.Number) {
			continue
		}
		if err := s.reach(ctx, c.Checkpoint, nil, kept); err != nil {
			return nil, 0, err
		}
	}
	if err := s.reach(ctx, runnerscripts.Checkpoint{Transcript: transcript}, nil, kept); err != nil {
		return nil, 0, err
	}
	for _, number := range old {
		if err := s.reach(ctx, runnerscripts.Checkpoint{Workspace: st.checkpoint(number).Workspace}, kept, garbage); err != nil {
			return nil, 0, err
		}
	}
	for _, size := range garbage {
		freed += size
	}
	for _, c := range st.Checkpoints {
		if now := slices.Contains(old, c.Number); !now && (!c.Pruned || s.removed) {
			continue
		}
		err := s.reach(ctx, c.Checkpoint, kept, garbage)
		if c.Pruned && errors.Is(err, fs.ErrNotExist) {
			continue // it was removed
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return garbage, freed, nil
}

// digests returns the names of blobs as the store has them.
func digests(of workspace.Sizes) []store.Digest {
	list := make([]store.Digest, 0, len(of))
	for d := range of {
		list = append(list, store.Digest(d))
	}
	return list
}

// reach adds to found the blobs that a checkpoint needs, without those in except.
func (s *AgentSession) reach(ctx context.Context, c runnerscripts.Checkpoint, except, found workspace.Sizes) error {
	if c.Workspace != "" {
		if err := workspace.Reach(ctx, s.blobs(), workspace.Digest(c.Workspace), except, found); err != nil {
			return err
		}
	}
	digest := workspace.Digest(c.Transcript)
	if digest == "" || except.Has(digest) || found.Has(digest) {
		return nil
	}
	data, pieces, err := s.transcriptBlob(ctx, store.Digest(digest))
	if err != nil {
		return err
	}
	found[digest] = int64(len(data))
	for _, piece := range pieces {
		if piece := workspace.Digest(piece); !except.Has(piece) {
			found[piece] = transcriptPiece
		}
	}
	return nil
}
