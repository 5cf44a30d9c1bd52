package environment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Waiting is a permission request that waits for an answer.
type Waiting struct {
	ID    string    `json:"id"`
	Title string    `json:"title"` // of the tool call, as one line
	Since time.Time `json:"since"`
	// Request is the whole request. It is nil in a [SandboxInfo].
	Request *PermissionRequest `json:"-"`
}

// maxTitle is how many characters of a title are shown in lists.
const maxTitle = 200

// waitingFor returns what an event of the type request_permission waits for.
func waitingFor(ev runnerscripts.Event) (Waiting, error) {
	req, err := runnerscripts.Payload[PermissionRequest](ev)
	if err != nil {
		return Waiting{}, err
	}
	title := req.ToolCall.Title
	if title == "" {
		title = req.ToolCall.Name
	}
	words := []rune(strings.Join(strings.Fields(title), " "))
	if len(words) > maxTitle {
		words = append(words[:maxTitle-1], '…')
	}
	return Waiting{ID: req.ID, Title: string(words), Since: ev.Time, Request: &req}, nil
}

// noteWaiting stores that a request waits for an answer. It leaves queries of other programs to
// these.
func (r *queryRun) noteWaiting(ev runnerscripts.Event) {
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
	r.env.kept.Note(func(a *kept.Record) {
		a.Waiting = append(a.Waiting, kept.Waiting{ID: w.ID, Title: w.Title, Since: w.Since})
	})
}

// noteAnswered stores that a request no longer waits.
func (r *queryRun) noteAnswered(id string) {
	if r.watching {
		return
	}
	r.env.kept.Note(func(a *kept.Record) {
		a.Waiting = slices.DeleteFunc(a.Waiting, func(w kept.Waiting) bool { return w.ID == id })
	})
}

// Waiting returns the permission requests that wait for an answer in the query that runs in the
// sandbox, oldest first, whichever program began it. [Environment.FollowQuery] can answer them.
// If no query runs it returns none. The sandbox must be kept and have durable commands: in others
// only the program of the query knows, and the error is errors.ErrUnsupported.
func (e *Environment) Waiting(ctx context.Context) ([]Waiting, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !e.Durable() {
		return nil, fmt.Errorf("permission requests: %w: the sandbox is not kept, so only the program of its query can answer", errors.ErrUnsupported)
	}
	far, running, err := e.runningQuery(ctx)
	if err != nil || !running {
		return nil, err
	}
	var open []Waiting
	for _, ev := range far.waiting {
		w, err := waitingFor(e.fromScript(ev, ev.QueryID, runnerscripts.SourceRunner))
		if err == nil { // a request that cannot be read is rejected
			open = append(open, w)
		}
	}
	slices.SortFunc(open, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	return open, nil
}
