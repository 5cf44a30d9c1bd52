package session

import (
	"bytes"
	"context"
	"errors"
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
	events := []runnerscripts.Event{
		event(runnerscripts.TypeQueryQueued, t.id, runnerscripts.QueryStarted{Prompt: t.prompt, Attachments: t.attachments, OutputSchema: t.schema}),
	}
	if err := s.append(ctx, events...); err != nil {
		return 0, err
	}
	return events[0].Seq, nil
}

// attachmentsAt returns the attachments of the prompt whose event has a Seq; nil if the store has dropped it.
func (s *AgentSession) attachmentsAt(ctx context.Context, seq uint64) ([]runnerscripts.Attachment, error) {
	for ev, err := range s.store.Events(ctx, s.id, seq) {
		if errors.Is(err, store.ErrDropped) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the prompt: %w", err)
		}
		p, _ := decode[runnerscripts.QueryStarted](ev)
		return p.Attachments, nil
	}
	return nil, nil
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
