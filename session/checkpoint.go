package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// workspaceTimeout bounds reading the workspace from a sandbox, so that a hung sandbox does not
// hang the session.
const workspaceTimeout = 10 * time.Minute

// transcriptPiece is the size in bytes of the pieces in which a longer transcript is stored.
// Transcripts grow at their end, so that checkpoints share all pieces but the last ones.
const transcriptPiece = 256 << 10

// Checkpoint is a point of the session that it can return to, see [AgentSession.Rewind].
type Checkpoint struct {
	runnerscripts.Checkpoint
	Seq  uint64    `json:"seq"` // Seq of the checkpoint's event
	Time time.Time `json:"time"`
	// Pruned says that its files and its transcript were removed; see Config.KeepPeriodic.
	Pruned bool `json:"pruned,omitempty"`
}

// checkpoint returns the checkpoint with this number; the zero value if there is none.
func (s *State) checkpoint(number int) Checkpoint {
	// Checkpoints are numbered from 1 without gaps.
	if number < 1 || number > len(s.Checkpoints) {
		return Checkpoint{}
	}
	return s.Checkpoints[number-1]
}

func (s *State) applyCheckpoint(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeCheckpoint:
		p, ok := decode[runnerscripts.Checkpoint](ev)
		if !ok || p.Number != len(s.Checkpoints)+1 {
			return
		}
		s.Checkpoints = append(s.Checkpoints, Checkpoint{Checkpoint: p, Seq: ev.Seq, Time: ev.Time.Round(0).UTC()})
		s.Checkpoint, s.Unsaved = p.Number, p.Stale != ""
	case runnerscripts.TypeRewound:
		if p, ok := decode[runnerscripts.Rewound](ev); ok {
			s.Checkpoint, s.Unsaved = p.Checkpoint, false
		}
	case runnerscripts.TypeCheckpointsPruned:
		s.applyPruned(ev)
	}
}

// head returns the checkpoint that a new sandbox starts from; the zero value if there is none.
func (s *AgentSession) head() Checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.checkpoint(s.state.Checkpoint)
}

// checkpointWithFiles returns the checkpoint with this number. It fails if the files of the workspace are
// not stored.
func (s *AgentSession) checkpointWithFiles(number int) (Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.withFiles(number)
}

// withFiles returns the checkpoint with this number. It fails if there is none, or if its files
// are not stored.
func (s *State) withFiles(number int) (Checkpoint, error) {
	c := s.checkpoint(number)
	switch {
	case c.Number == 0:
		return c, fmt.Errorf("%w: the session has no checkpoint %d; its last one is %d", fs.ErrNotExist, number, len(s.Checkpoints))
	case c.Stale != "":
		advice := "no earlier one has files"
		if c.FilesOf > 0 {
			advice = fmt.Sprintf("use checkpoint %d, the last one before it that has files", c.FilesOf)
		}
		return c, fmt.Errorf("checkpoint %d has no files, because they could not be stored: %s: %w; %s", number, c.Stale, errors.ErrUnsupported, advice)
	case c.Workspace == "":
		return c, fmt.Errorf("the files of checkpoint %d are not stored, because the workspace is a folder of yours or the session stores none: %w",
			number, errors.ErrUnsupported)
	case c.Pruned:
		return c, s.prunedError(number)
	}
	return c, nil
}

// storesFiles reports whether checkpoints hold the files of the workspace.
func (s *AgentSession) storesFiles() bool {
	return !s.cfg.NoFiles && !inPlace(s.cfg.Environment)
}

// blobs gives package workspace access to the blobs of one session.
type blobs struct {
	store store.Store
	id    string
}

func (b blobs) PutBlobs(ctx context.Context, contents iter.Seq2[io.Reader, error]) ([]workspace.Digest, error) {
	digests, err := b.store.PutBlobs(ctx, b.id, contents)
	same := make([]workspace.Digest, len(digests))
	for i, d := range digests {
		same[i] = workspace.Digest(d)
	}
	return same, err
}

func (b blobs) Blob(ctx context.Context, d workspace.Digest) (io.ReadCloser, error) {
	return b.store.Blob(ctx, b.id, store.Digest(d))
}

func (s *AgentSession) blobs() blobs { return blobs{s.store, s.id} }

// Sync takes a checkpoint now, even while a query runs, and returns it. If nothing has changed
// since the last checkpoint, or there is no sandbox, everything is already stored, and Sync
// returns the last one, or the zero value if there is none. It returns an error if the workspace or the agent's history cannot be stored.
func (s *AgentSession) Sync(ctx context.Context) (Checkpoint, error) {
	if err := s.check(); err != nil {
		return Checkpoint{}, fmt.Errorf("sync: %w", err)
	}
	live := s.live()
	if live == nil {
		return s.head(), nil
	}
	if err := s.sync(ctx, live, runnerscripts.CheckpointManual); err != nil && s.live() == live {
		return Checkpoint{}, fmt.Errorf("sync: %w", err)
	} // otherwise the sandbox ended meanwhile, after everything was stored
	return s.head(), nil
}

// sync takes a checkpoint of a sandbox in which a query may run.
func (s *AgentSession) sync(ctx context.Context, live *liveSandbox, reason runnerscripts.CheckpointReason) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	return s.save(ctx, live, reason)
}

// save is sync for a caller that holds saving.
func (s *AgentSession) save(ctx context.Context, live *liveSandbox, reason runnerscripts.CheckpointReason) error {
	reading, cancel := context.WithTimeout(ctx, transcriptTimeout)
	defer cancel()
	t, err := live.ReadTranscript(reading)
	if err != nil {
		return err
	}
	changed, err := s.putTranscript(ctx, live, t)
	if err != nil {
		return err
	}
	ev, err := s.takeCheckpoint(ctx, live, reason)
	if err != nil {
		return err
	}
	if ev == nil {
		return nil
	}
	return s.append(ctx, changed, *ev)
}

// takeCheckpoint stores the workspace and returns the event of a checkpoint with it and the
// last stored transcript. It returns nil if neither has changed, unless a query has ended. The
// caller holds saving.
func (s *AgentSession) takeCheckpoint(ctx context.Context, live *liveSandbox, reason runnerscripts.CheckpointReason) (*runnerscripts.Event, error) {
	head := s.head()
	next := head.Checkpoint
	next.Parent, next.Reason, next.Stored, next.Unsteady, next.Stale, next.FilesOf = head.Number, reason, 0, nil, "", 0
	s.mu.Lock()
	next.Number = len(s.state.Checkpoints) + 1
	s.mu.Unlock()
	if live.queryID != "" {
		next.QueryID, next.Prompt = live.queryID, title(live.prompt)
	}
	if live.transcript != "" {
		next.Transcript, next.Agent = live.transcript, s.cfg.Environment.Agent.Name
	}
	var err error
	if s.storesFiles() {
		err = s.putWorkspace(ctx, live, &next)
	}
	if err != nil {
		next.Stale = err.Error()
		if next.FilesOf = head.FilesOf; head.Stale == "" && head.Workspace != "" {
			next.FilesOf = head.Number
		}
	}
	must := reason == runnerscripts.CheckpointQuery || reason == runnerscripts.CheckpointManual && head.Stale != ""
	if !must && next.Transcript == head.Transcript && next.Workspace == head.Workspace {
		return nil, err
	}
	ev := event(runnerscripts.TypeCheckpoint, "", next)
	return &ev, err
}

// putWorkspace stores the workspace and adds it to a checkpoint.
func (s *AgentSession) putWorkspace(ctx context.Context, live *liveSandbox, c *runnerscripts.Checkpoint) error {
	ctx, cancel := context.WithTimeout(ctx, workspaceTimeout)
	defer cancel()
	if live.states == nil {
		var err error
		if live.states, err = s.newStates(ctx, s.head(), false); err != nil {
			s.log.Warn("the files of the last checkpoint cannot be read; all are stored again", "error", err)
			live.states, _ = s.newStates(ctx, Checkpoint{}, false) // it reads nothing
		}
	}
	live.states.Room = s.room()
	st, err := live.states.Take(ctx, live, live.states.Blobs, live.states.Options)
	c.Stored = live.states.Claim()
	if err != nil {
		return err
	}
	c.Path = live.WorkspacePath()
	c.Workspace, c.Files, c.Bytes = string(st.Root), st.Files, st.Bytes
	c.Unsteady = st.Unsteady
	if len(st.Unreadable) > 0 && !live.unreadable {
		live.unreadable = true
		s.log.Warn("files of the workspace cannot be read and are not in checkpoints", "files", strings.Join(st.Unreadable, ", "))
	}
	return nil
}

// newStates returns where the states of a sandbox's workspace are stored; nil if they are not. The sandbox begins with
// the files of a checkpoint if begun is true. Otherwise these are only what the store has.
func (s *AgentSession) newStates(ctx context.Context, from Checkpoint, begun bool) (*workspace.Tracker, error) {
	if !s.storesFiles() {
		return nil, nil
	}
	cfg := s.cfg.Environment.Checkpoints
	states := &workspace.Tracker{Blobs: s.blobs(), Options: workspace.Options{Limit: int64(cfg.MaxSize), Room: s.room()}}
	if len(cfg.Ignore) > 0 {
		states.Skip = func(name string) bool { return workspace.IgnoredItself(cfg.Ignore, name) }
	}
	if from.Workspace == "" || from.Pruned {
		return states, nil
	}
	if err := states.Expect(ctx, states.Blobs, workspace.Digest(from.Workspace), begun); err != nil {
		return nil, fmt.Errorf("read checkpoint %d: %w", from.Number, err)
	}
	return states, nil
}

// checkpointEvents takes a checkpoint and returns its event, and an error event if the
// workspace could not be stored. The caller holds saving.
func (s *AgentSession) checkpointEvents(ctx context.Context, live *liveSandbox, reason runnerscripts.CheckpointReason) []runnerscripts.Event {
	var events []runnerscripts.Event
	ev, err := s.takeCheckpoint(ctx, live, reason)
	if ev != nil {
		events = append(events, *ev)
	}
	if err == nil || gone(err) {
		live.failed = ""
		return events
	}
	if live.failed != err.Error() { // the same error is reported once
		live.failed = err.Error()
		events = append(events, event(runnerscripts.TypeError, "", runnerscripts.ErrorInfo{
			Code: failure(err).Code,
			Message: fmt.Sprintf("%s has no files, and a new sandbox will not have the present workspace, because it could not be stored: %v",
				checkpointName(ev), err),
		}))
	}
	return events
}

// checkpointName names the checkpoint of an event, which may be nil.
func checkpointName(ev *runnerscripts.Event) string {
	if ev == nil {
		return "a checkpoint"
	}
	c, _ := decode[runnerscripts.Checkpoint](*ev)
	return fmt.Sprintf("checkpoint %d", c.Number)
}

// start takes the first checkpoint of a session.
func (s *AgentSession) start(ctx context.Context, live *liveSandbox) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if !s.storesFiles() || s.head().Number > 0 {
		return nil
	}
	return s.append(ctx, s.checkpointEvents(ctx, live, runnerscripts.CheckpointStart)...)
}

// periodically takes checkpoints until ctx is done.
func (s *AgentSession) periodically(ctx context.Context, live *liveSandbox) {
	ticker := time.NewTicker(s.cfg.CheckpointInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		s.saving.Lock()
		if err := s.save(ctx, live, runnerscripts.CheckpointPeriodic); err != nil {
			s.warn(ctx, "no checkpoint was taken", err)
		} else if err := s.prune(ctx, live); err != nil {
			s.warn(ctx, "old checkpoints were not pruned", err)
		}
		s.saving.Unlock()
	}
}

// warn logs an error, unless ctx has ended.
func (s *AgentSession) warn(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		s.log.Warn(what, "error", err)
	}
}

// title returns the start of a prompt, for lists.
func title(prompt string) string {
	const most = 80
	line, _, _ := strings.Cut(strings.TrimSpace(prompt), "\n")
	runes := []rune(line)
	if len(runes) <= most {
		return line
	}
	return string(runes[:most-1]) + "…"
}

// putTranscript stores a transcript for the next checkpoint and returns the event that reports
// it. The caller holds saving.
func (s *AgentSession) putTranscript(ctx context.Context, live *liveSandbox, t runnerscripts.Transcript) (runnerscripts.Event, error) {
	data, err := json.Marshal(t)
	if err != nil {
		return runnerscripts.Event{}, err
	}
	if len(data) > transcriptPiece {
		pieces, err := s.store.PutBlobs(ctx, s.id, func(yield func(io.Reader, error) bool) {
			for piece := range slices.Chunk(data, transcriptPiece) {
				if !yield(bytes.NewReader(piece), nil) {
					return
				}
			}
		})
		if err == nil {
			data, err = json.Marshal(pieces)
		}
		if err != nil {
			return runnerscripts.Event{}, err
		}
	}
	digest, err := store.PutBlob(ctx, s.store, s.id, bytes.NewReader(data))
	if err != nil {
		return runnerscripts.Event{}, err
	}
	live.transcript, live.saved = string(digest), max(sizeOf(t), 1)
	return event(runnerscripts.TypeTranscriptChanged, "", runnerscripts.TranscriptChanged{Size: sizeOf(t)}), nil
}

// storedTranscript returns the transcript of the last checkpoint; nil if none is stored.
func (s *AgentSession) storedTranscript(ctx context.Context) (*runnerscripts.Transcript, error) {
	digest := s.head().Transcript
	if digest == "" {
		return nil, nil
	}
	data, pieces, err := s.transcriptBlob(ctx, store.Digest(digest))
	if err == nil && pieces != nil {
		data, err = s.readBlobs(ctx, pieces...)
	}
	var t runnerscripts.Transcript
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		return nil, fmt.Errorf("read stored transcript: %w", err)
	}
	return &t, nil
}

// transcriptBlob returns the blob of a transcript. A long one is in pieces.
func (s *AgentSession) transcriptBlob(ctx context.Context, digest store.Digest) (data []byte, pieces []store.Digest, err error) {
	data, err = s.readBlobs(ctx, digest)
	if err == nil && bytes.HasPrefix(data, []byte("[")) {
		err = json.Unmarshal(data, &pieces)
	}
	return data, pieces, err
}

// readBlobs returns the contents of blobs one after the other.
func (s *AgentSession) readBlobs(ctx context.Context, digests ...store.Digest) ([]byte, error) {
	var all bytes.Buffer
	for _, d := range digests {
		r, err := s.store.Blob(ctx, s.id, d)
		if err != nil {
			return nil, err
		}
		_, err = all.ReadFrom(r) // read to EOF: only then is the digest verified
		if err = errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
	}
	return all.Bytes(), nil
}

func (s *AgentSession) lastSeq() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.LastSeq
}
