package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// WriteWorkspace stores the files of a tar archive, plain or compressed with gzip, as the first checkpoint of a new session. Its
// sandboxes begin with them, in place of Environment.Workspace of the [Config]. Use it if the files are not on the machine that
// creates the sandbox, or can be read only once.
//
// It returns [ErrBusy] after the first prompt, fs.ErrExist if the session has other files already, and fs.ErrInvalid if it stores
// none, or for no archive. Files of more than the session may store are primitives.ErrLimit. After an error the session has none
// of the files, so the call can be repeated, also with the same files after a success.
func (s *AgentSession) WriteWorkspace(ctx context.Context, r io.Reader) error {
	if err := s.writeWorkspace(ctx, r); err != nil {
		return fmt.Errorf("write the workspace: %w", err)
	}
	return nil
}

func (s *AgentSession) writeWorkspace(ctx context.Context, r io.Reader) error {
	if !s.storesFiles() {
		return fmt.Errorf("%w: the session stores no files; leave NoFiles and the folder of Sandbox.Workspace out", fs.ErrInvalid)
	}
	if len(s.cfg.Environment.Checkpoints.Ignore) > 0 {
		return fmt.Errorf("%w: checkpoints leave out what Checkpoints.Ignore names, so it would be lost; leave that out", fs.ErrInvalid)
	}
	if err := s.unused(); err != nil {
		return err
	}
	s.uploading.Lock() // another one could share what this one removes after an error
	defer s.uploading.Unlock()
	plain, err := archive.Open(r)
	if err != nil {
		return fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	states, err := s.newStates(ctx, Checkpoint{}, false)
	if err != nil {
		return err
	}
	found, stored, err := workspace.Read(ctx, plain, states.Blobs, states.ArchiveLimit())
	if err != nil {
		return err
	}
	s.promptMu.Lock() // no query may start meanwhile
	defer s.promptMu.Unlock()
	s.saving.Lock()
	defer s.saving.Unlock()
	if err := s.unused(); err != nil {
		return err
	}
	first := runnerscripts.Checkpoint{
		Number: 1, Reason: runnerscripts.CheckpointUpload,
		Workspace: string(found.Root), Files: found.Files, Bytes: found.Bytes, Stored: stored,
	}
	if has := s.head(); has.Workspace == first.Workspace {
		return nil
	} else if has.Number > 0 {
		err := fmt.Errorf("%w: files were written at %s; make another session for others", fs.ErrExist, has.Time.Format(time.RFC3339))
		return errors.Join(err, s.removeNew(context.WithoutCancel(ctx), found.Root)) // nothing else is stored yet
	}
	return s.append(ctx, event(runnerscripts.TypeCheckpoint, "", first))
}

// removeNew removes the blobs of a state that the last checkpoint does not have.
func (s *AgentSession) removeNew(ctx context.Context, root workspace.Digest) error {
	kept, garbage := workspace.Sizes{}, workspace.Sizes{}
	if has := s.head(); has.Workspace != "" {
		if err := workspace.Reach(ctx, s.blobs(), workspace.Digest(has.Workspace), nil, kept); err != nil {
			return err
		}
	}
	if err := workspace.Reach(ctx, s.blobs(), root, kept, garbage); err != nil {
		return err
	}
	return s.store.RemoveBlobs(ctx, s.id, digests(garbage)...)
}

// unused returns an error if the session has had a prompt.
func (s *AgentSession) unused() error {
	if err := s.idle(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.state.recent) > 0 || s.state.Environment.Starts > 0 {
		return fmt.Errorf("%w: it has had a prompt, and a workspace; use a new session", ErrBusy)
	}
	return nil
}
