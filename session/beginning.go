package session

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// beginning is the stored state from which a new sandbox starts.
type beginning struct {
	transcript *runnerscripts.Transcript
	workspace  io.ReadCloser // nil if the environment fills the workspace from its sources
	checkpoint Checkpoint    // the checkpoint that holds both
	filesOf    Checkpoint    // the checkpoint with whose files the workspace begins
	// lost says that an earlier sandbox had state that was not stored.
	lost bool
}

func (s *AgentSession) loadBeginning(ctx context.Context) (*beginning, error) {
	t, err := s.storedTranscript(ctx)
	if err != nil {
		return nil, err
	}
	b := &beginning{transcript: t, checkpoint: s.head()}
	if inPlace(s.cfg.Environment) {
		return b, nil
	}
	s.mu.Lock()
	env, unsaved := s.state.Environment, s.state.Unsaved
	if b.filesOf = b.checkpoint; b.checkpoint.Stale != "" {
		b.filesOf = s.state.checkpoint(b.checkpoint.FilesOf)
	}
	s.mu.Unlock()
	b.lost = env.readySeq > 0
	if !s.storesFiles() || b.checkpoint.Workspace == "" {
		return b, nil
	}
	b.lost = unsaved || b.checkpoint.Stale != ""
	b.workspace = s.packed(ctx, workspace.Digest(b.checkpoint.Workspace))
	return b, nil
}

// events returns the events that report what was restored, or lost, in a new sandbox.
func (b *beginning) events(data runnerscripts.SetupData) []runnerscripts.Event {
	var events []runnerscripts.Event
	if b.transcript != nil {
		events = append(events, event(runnerscripts.TypeTranscriptRestored, "", data.Restored))
	}
	if b.lost {
		text := "the workspace lacks what was changed in the last sandbox, because it was not stored when that ended"
		if b.workspace != nil {
			text = fmt.Sprintf("the workspace is that of checkpoint %d, taken at %s: what was changed after that is lost, because the last sandbox ended before it was stored",
				b.filesOf.Number, b.filesOf.Time.Format(time.RFC3339))
		}
		events = append(events, event(runnerscripts.TypeLog, "", runnerscripts.Log{Level: "warn", Message: text}))
	}
	return events
}

// close closes the workspace. Close of a packedTree never fails.
func (b *beginning) close() {
	if b.workspace != nil {
		_ = b.workspace.Close()
	}
}

// packed returns a stored workspace as a tar archive. The caller closes it.
func (s *AgentSession) packed(ctx context.Context, root workspace.Digest) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	p := &packedTree{PipeReader: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = w.CloseWithError(workspace.Pack(ctx, s.blobs(), root, nil, w)) // it never fails
	}()
	return p
}

// packedTree is an archive that is written by a goroutine.
type packedTree struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close stops the goroutine and waits for its end.
func (p *packedTree) Close() error {
	p.cancel()
	err := p.PipeReader.Close()
	<-p.done
	return err
}
