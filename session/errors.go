package session

import (
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// What can go wrong, beside the errors of the store and of the environment,
// which are in the chain of what the methods return.
var (
	// ErrClosed: the session was closed.
	ErrClosed = errors.New("session is closed; open it again by its id")
	// ErrBusy: the session takes no prompt now, because a query runs and
	// Config.RejectBusy is set, or because the queue is full.
	ErrBusy = errors.New("session is busy; wait for the running query or interrupt it")
	// ErrNotPending: the permission request is answered or withdrawn, or never
	// was.
	ErrNotPending = errors.New("permission request is not waiting for an answer")
	// ErrNoEnvironment: the session has no sandbox at the moment. The next
	// prompt makes one.
	ErrNoEnvironment = errors.New("session has no running environment; the next prompt makes one")
)

// QueryError says that a query did not complete.
type QueryError struct {
	QueryID string
	// Failure is what the query_failed event says.
	Failure runnerscripts.QueryFailed
	// Err is the cause, for errors.Is and errors.As; nil if it is not known
	// beyond Failure.
	Err error
}

// Error returns the message of the failure and its code.
func (e *QueryError) Error() string {
	return fmt.Sprintf("query failed: %s (%s)", e.Failure.Message, e.Failure.Code)
}

// Unwrap returns the cause.
func (e *QueryError) Unwrap() error { return e.Err }

// Reasons why the session itself stops a query.
var (
	errInterrupted = errors.New("query was interrupted")
	errUnhealthy   = errors.New("the sandbox does not answer any more")
)
