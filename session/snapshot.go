package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// workspaceTimeout bounds how long the workspace is read from a sandbox, so that one
// that hangs does not hang the session.
const workspaceTimeout = 10 * time.Minute

// saveWorkspace stores the workspace. What keeps it from being stored becomes an
// error event, because the sandbox ends anyhow.
func (s *AgentSession) saveWorkspace(ctx context.Context, live *liveSandbox) {
	if s.cfg.MaxWorkspace < 0 || inPlace(s.cfg.Environment) {
		return
	}
	err := s.putWorkspace(ctx, live)
	if err == nil {
		return
	}
	// If this fails the session is broken, and says so itself.
	_ = s.append(ctx, event(runnerscripts.TypeError, "", runnerscripts.ErrorInfo{
		Code:    failure(err).Code,
		Message: fmt.Sprintf("a new sandbox will not have the present workspace, because it could not be stored: %v", err),
	}))
}

func (s *AgentSession) putWorkspace(ctx context.Context, live *liveSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, workspaceTimeout)
	defer cancel()
	r, err := live.Pack(ctx)
	if err != nil {
		return err
	}
	digest, err := store.PutBlob(ctx, s.store, s.id, &limitReader{r: r, left: s.cfg.MaxWorkspace, limit: s.cfg.MaxWorkspace})
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	return s.append(ctx, event(runnerscripts.TypeCheckpoint, "", runnerscripts.Checkpoint{Workspace: string(digest)}))
}

func (s *AgentSession) lastSeq() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.LastSeq
}

// snapshot is what a new sandbox starts with.
type snapshot struct {
	transcript *runnerscripts.Transcript
	workspace  io.ReadCloser // nil if the session places its sources
	// outdated says that there was a sandbox whose workspace was not stored.
	outdated bool
}

func (s *AgentSession) loadSnapshot(ctx context.Context) (*snapshot, error) {
	t, err := s.storedTranscript(ctx)
	if err != nil {
		return nil, err
	}
	snap := &snapshot{transcript: t}
	if inPlace(s.cfg.Environment) {
		return snap, nil
	}
	s.mu.Lock()
	ready, stored := s.state.Environment.readySeq, s.state.stored
	s.mu.Unlock()
	snap.outdated = ready > 0
	if s.cfg.MaxWorkspace < 0 || stored.Workspace == "" {
		return snap, nil
	}
	snap.workspace, err = s.store.Blob(ctx, s.id, stored.Workspace)
	if err != nil {
		return nil, fmt.Errorf("read stored workspace: %w", err)
	}
	snap.outdated = stored.WorkspaceSeq < ready
	return snap, nil
}

// events tells what a new sandbox starts with, beside what everybody expects.
func (s *snapshot) events() []runnerscripts.Event {
	var events []runnerscripts.Event
	if s.transcript != nil {
		events = append(events, event(runnerscripts.TypeTranscriptRestored, "", struct{}{}))
	}
	if s.outdated {
		events = append(events, event(runnerscripts.TypeLog, "", runnerscripts.Log{
			Level: "warn", Message: "the workspace lacks what was changed in the last sandbox, because it was not stored when that ended",
		}))
	}
	return events
}

// close releases the workspace. It was read to its end or not at all; there is
// nothing left to fail.
func (s *snapshot) close() {
	if s.workspace != nil {
		_ = s.workspace.Close()
	}
}

// limitReader fails, rather than ends, when there is more than the limit.
type limitReader struct {
	r           io.Reader
	left, limit int64
}

func (l *limitReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return 0, fmt.Errorf("%w: it is larger than %d bytes; raise MaxWorkspace or keep less in it", primitives.ErrLimit, l.limit)
	}
	return n, err
}
