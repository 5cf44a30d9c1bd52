package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Query is one prompt.
type Query struct {
	// Prompt must not be empty.
	Prompt string
	// Attachments are images and files that come with the prompt.
	Attachments []runnerscripts.Attachment
	// OutputSchema is a JSON schema of at most [MaxOutputSchema] bytes that stands alone. With it the query ends with JSON that
	// matches: Result.ResultData, and QueryCompleted.ResultData in the event. An agent whose answer does
	// not match is asked again, twice at most, in the same query. Then the query fails with
	// runnerscripts.FailOutput and says what does not match. Empty asks for no JSON. It is for this query alone.
	OutputSchema json.RawMessage
	// ID becomes Event.QueryID of the query's events. Empty means a new ID. If the latest prompt
	// in the sandbox has this ID and its program is gone, the query continues and the agent does
	// not get the prompt again. So a prompt runs once, whenever its program died.
	ID string
	// After is the Index of the query's last event that the caller has. Events up to it are left
	// out, and later events have higher indexes. A new query has zero.
	After int
	// Detach lets the query continue in the sandbox when ctx is done, the loop ends early or the
	// environment is closed. [Environment.Interrupt] stops it. Detach needs a kept sandbox with
	// durable commands.
	Detach bool
}

// ExecuteQuery sends the agent a prompt and returns the events, to the end of the query. The
// first query starts the agent, which stays alive between queries if it can. The sequence can be
// used once.
//
// The events of a query that began always end with query_completed or query_failed. If the query
// did not complete, the sequence then ends with an error: a [*QueryError] if the agent reported
// the failure, or a [*ScriptError] if the runner died or broke the protocol. It wraps
// primitives.ErrUnavailable if the sandbox is gone. If another query runs, the only element is
// [ErrBusy]; if ctx is done beforehand, the only element is its cause; for attachments that the agent
// does not accept, it is the error of [Config.CheckAttachments], and for a bad schema that of
// [Config.CheckOutputSchema].
//
// Config.OnPermission answers permission requests. Without it they are rejected, so that no
// query waits for an answer that never comes.
//
// A slow loop slows down the agent: events are not buffered, so the agent waits when the pipes
// are full, and the end of ctx takes effect after the body of the loop. In a kept sandbox with
// durable commands the agent does not wait: its events wait in a file, and events beyond
// primitives.MaxDurableOutput are lost, with primitives.ErrLimit.
//
// Leaving the loop early interrupts the query and waits for its end, unless q.Detach is set.
// When ctx is done, ExecuteQuery interrupts the query and returns its remaining events, and the
// sequence ends with the cause of ctx. An agent that does not stop within 5 seconds
// (runnerscripts.DefaultInterruptGrace) is killed, and the next query starts it again.
func (e *Environment) ExecuteQuery(ctx context.Context, q Query) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		var err error
		if q.Attachments, err = e.cfg.CheckAttachments(ctx, q.Attachments); err != nil {
			yield(runnerscripts.Event{}, fmt.Errorf("execute query: %w", err))
			return
		}
		if q.OutputSchema, err = e.cfg.CheckOutputSchema(q.OutputSchema); err != nil {
			yield(runnerscripts.Event{}, fmt.Errorf("execute query: %w", err))
			return
		}
		e.queries.Execute(ctx, query.Query(q), e.interruptDelegates(ctx, q.Detach, yield))
	}
}

// FollowQuery returns the events of the query that runs in the sandbox, whichever program sent
// its prompt, until the query ends. If no query runs, it returns the events of the last one. It
// omits events whose Index is at most after, so that a program that has some events continues
// with the next one. Zero starts at the beginning.
//
// A query in a kept sandbox outlives its program, and FollowQuery continues it. The query can be
// interrupted, and its permission requests can be answered, like those of a query of this
// environment. This includes the requests in omitted events. Requests that were settled before
// are [ErrNotPending], and Config.OnPermission is not called for them. If OnPermission is nil,
// requests are left to the program that began the query.
//
// The sequence ends as that of [Environment.ExecuteQuery]. If ctx is done, the loop ends early
// or the environment is closed, the query continues. The error is [ErrNoQuery] if no query was
// begun since the sandbox was created, or if the sandbox has no durable commands.
func (e *Environment) FollowQuery(ctx context.Context, after int) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		e.queries.Follow(ctx, after, e.interruptDelegates(ctx, true, yield))
	}
}

// Unattended reports whether the sandbox has a query whose end no program has seen: the query
// still runs, or it ended after its program was killed. Use [Environment.FollowQuery] to read
// it.
func (e *Environment) Unattended(ctx context.Context) (bool, error) {
	return e.queries.Unattended(ctx)
}

// Working reports whether a query runs in the sandbox, of this program or another one.
func (e *Environment) Working(ctx context.Context) (bool, error) {
	ctx, leave, err := e.queries.Alone(ctx)
	if errors.Is(err, ErrBusy) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer leave()
	return e.queries.Working(ctx)
}

// Durable reports whether a query can continue in the sandbox without this program, as
// Query.Detach needs: the sandbox is kept and has durable commands, and the script is not the
// user's own.
func (e *Environment) Durable() bool { return e.queries.Durable() }

// Interrupt asks the running query to stop and does not wait for it: the query completes with
// runnerscripts.StopCancelled. A query that is still being prepared stops once it has begun. An
// agent that does not stop within 5 seconds (runnerscripts.DefaultInterruptGrace) is killed, and
// the query fails. A second interrupt changes nothing. Without a running query Interrupt does
// nothing.
func (e *Environment) Interrupt(ctx context.Context) error {
	return e.queries.Interrupt(ctx)
}

// SetMode changes the permission mode of the agent, and of agents that this environment starts
// later.
func (e *Environment) SetMode(ctx context.Context, mode string) error {
	return e.queries.SetMode(ctx, mode)
}

// SetModel changes the model of the agent, and of agents that this environment starts later.
func (e *Environment) SetModel(ctx context.Context, model string) error {
	return e.queries.SetModel(ctx, model)
}

// KeepsAnswers reports whether an answer may have the scope always: with Config.Permissions, in a workspace
// that began with a folder or a repository.
func (e *Environment) KeepsAnswers() bool { return e.queries.KeepsAnswers() }

// Respond answers a permission request of the running query by its ID. It is for programs whose
// Config.OnPermission leaves the answer open, as [AnswerLater] does. Only the first answer
// counts: for a request that was answered or withdrawn, or never existed, the error is
// [ErrNotPending]. Without a running query it is [ErrNoQuery]. For an invalid decision, or one
// that the request does not offer, it is fs.ErrInvalid, and the request stays pending for the
// rest of Config.PermissionTimeout.
//
// ctx matters until the answer counts. Respond then queues the answer for the runner, even if
// ctx is done meanwhile. If the runner does not read and its queue is full, Respond returns when
// there is room, when the runner exits or when e is closed.
func (e *Environment) Respond(ctx context.Context, id string, d PermissionDecision) error {
	return e.queries.Respond(ctx, id, d)
}

// Waiting is a permission request that waits for an answer.
type Waiting struct {
	ID    string    `json:"id"`
	Title string    `json:"title"` // of the tool call, as one line
	Since time.Time `json:"since"`
	// Request is the whole request. It is nil in a [SandboxInfo].
	Request *PermissionRequest `json:"-"`
}

// Waiting returns the permission requests that wait for an answer in the query that runs in the
// sandbox, oldest first, whichever program began it. [Environment.FollowQuery] can answer them.
// If no query runs it returns none. The sandbox must be kept and have durable commands: in others
// only the program of the query knows, and the error is errors.ErrUnsupported.
func (e *Environment) Waiting(ctx context.Context) ([]Waiting, error) {
	found, err := e.queries.Waiting(ctx)
	var waiting []Waiting
	for _, w := range found {
		waiting = append(waiting, Waiting(w))
	}
	return waiting, err
}

// DefaultPermissionTimeout is how long a permission request waits for an answer if [Config] does
// not say.
const DefaultPermissionTimeout = permission.DefaultTimeout

// PermissionRequest is an agent's request for permission.
type PermissionRequest = runnerscripts.PermissionRequest

// PermissionDecision is the answer; use Allow and Reject of the request to make one.
type PermissionDecision = runnerscripts.PermissionDecision

// AllowAll allows each request once, including those of Budget.Ask, but none that may be what a rule denies. It is for
// Config.OnPermission, in a sandbox that confines the agent.
func AllowAll(_ context.Context, req PermissionRequest) PermissionDecision {
	if req.MayDeny != "" {
		return req.Reject("The rule " + req.MayDeny + " may deny it, and no user sees the request.")
	}
	return req.Allow()
}

// RejectAll rejects each request. It is for Config.OnPermission.
func RejectAll(_ context.Context, req PermissionRequest) PermissionDecision {
	return req.Reject("This program rejects what needs permission.")
}

// AnswerLater leaves each request to [Environment.Respond]. It is for
// Config.OnPermission.
func AnswerLater(context.Context, PermissionRequest) PermissionDecision {
	return PermissionDecision{}
}
