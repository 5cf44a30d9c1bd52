package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxTitle is how many characters of a title are shown in lists.
const maxTitle = 200

// waitingFor returns what an event of the type request_permission waits for.
func waitingFor(ev runnerscripts.Event) (kept.Waiting, error) {
	req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
	if err != nil {
		return kept.Waiting{}, err
	}
	title := req.ToolCall.Title
	if title == "" {
		title = req.ToolCall.Name
	}
	words := []rune(strings.Join(strings.Fields(title), " "))
	if len(words) > maxTitle {
		words = append(words[:maxTitle-1], '…')
	}
	return kept.Waiting{ID: req.ID, Title: string(words), Since: ev.Time, Request: &req}, nil
}

// noteWaiting stores that a request waits for an answer. It leaves queries of other programs to
// these.
func (r *run) noteWaiting(ev runnerscripts.Event) {
	if r.watching {
		return
	}
	w, err := waitingFor(ev)
	if err != nil {
		return // the request is rejected
	}
	if w.Since.IsZero() {
		w.Since = now()
	}
	r.q.Kept.Note(func(a *kept.Record) {
		a.Waiting = append(a.Waiting, w)
	})
}

// noteAnswered stores that a request no longer waits.
func (r *run) noteAnswered(id string) {
	if r.watching {
		return
	}
	r.q.Kept.Note(func(a *kept.Record) {
		a.Waiting = slices.DeleteFunc(a.Waiting, func(w kept.Waiting) bool { return w.ID == id })
	})
}

// Waiting returns the permission requests that wait for an answer in the query that runs in the sandbox, oldest first,
// whichever program began it.
func (q *Queries) Waiting(ctx context.Context) ([]kept.Waiting, error) {
	ctx, leave, err := q.Scripts.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !q.Durable() {
		return nil, fmt.Errorf("permission requests: %w: the sandbox is not kept, so only the program of its query can answer", errors.ErrUnsupported)
	}
	far, running, err := q.running(ctx)
	if err != nil || !running {
		return nil, err
	}
	var waiting []kept.Waiting
	for _, ev := range far.waiting {
		w, err := waitingFor(q.events.FromScript(ev, ev.QueryID, runnerscripts.SourceRunner))
		if err == nil { // a request that cannot be read is rejected
			waiting = append(waiting, w)
		}
	}
	slices.SortFunc(waiting, func(a, b kept.Waiting) int { return a.Since.Compare(b.Since) })
	return waiting, nil
}
