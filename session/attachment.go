package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// storePrompt stores the attachments of a prompt and then its event, whose Seq it returns. The turn
// keeps the attachments as the event has them.
func (s *AgentSession) storePrompt(ctx context.Context, t *Turn) (seq uint64, err error) {
	if len(t.attachments) > 0 {
		s.pruning.Lock() // which may remove a blob that no event names yet
		defer s.pruning.Unlock()
		digests, err := s.store.PutBlobs(ctx, s.id, func(yield func(io.Reader, error) bool) {
			for _, a := range t.attachments {
				if !yield(bytes.NewReader(a.Data), nil) {
					return
				}
			}
		})
		if err != nil {
			return 0, fmt.Errorf("store the attachments: %w", err)
		}
		for i, a := range t.attachments {
			t.attachments[i] = a.Info()
			t.attachments[i].Digest = string(digests[i])
		}
	}
	events := []runnerscripts.Event{t.queued(t.attachments)}
	if err := s.append(ctx, events...); err != nil {
		return 0, err
	}
	return events[0].Seq, nil
}

// queued returns the event of the accepted prompt.
func (t *Turn) queued(attachments []runnerscripts.Attachment) runnerscripts.Event {
	return event(runnerscripts.TypeQueryQueued, t.id, runnerscripts.QueryStarted{Prompt: t.prompt, Attachments: attachments, OutputSchema: t.schema})
}

// described returns the prompt, with its attachments not yet stored, as promptAt returns it once it is.
func (t *Turn) described() runnerscripts.QueryStarted {
	var attachments []runnerscripts.Attachment
	for _, a := range t.attachments {
		sum := sha256.Sum256(a.Data)
		a = a.Info()
		a.Digest = hex.EncodeToString(sum[:])
		attachments = append(attachments, a)
	}
	p, _ := decode[runnerscripts.QueryStarted](t.queued(attachments)) // JSON has no invalid UTF-8
	return p
}

// promptAt returns the prompt whose event has a Seq.
func (s *AgentSession) promptAt(ctx context.Context, seq uint64) (p runnerscripts.QueryStarted, err error) {
	s.replay(ctx, seq, seq, func(ev runnerscripts.Event, failed error) bool {
		p, _ = decode[runnerscripts.QueryStarted](ev)
		err = failed
		return false
	})
	if err != nil {
		return p, fmt.Errorf("read the prompt: %w", err)
	}
	return p, nil
}

// readAttachments returns stored attachments with their contents.
func (s *AgentSession) readAttachments(ctx context.Context, stored []runnerscripts.Attachment) ([]runnerscripts.Attachment, error) {
	var list []runnerscripts.Attachment
	for _, a := range stored {
		data, err := s.readBlobs(ctx, store.Digest(a.Digest))
		if err != nil {
			return nil, fmt.Errorf("read the attachment %s: %w", a.Name, err)
		}
		a.Data = data
		list = append(list, a)
	}
	return list, nil
}
