package session

import (
	"errors"

	"github.com/agentenv-dev/agentenv/environment"
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
	// was. It is environment.ErrNotPending.
	ErrNotPending = environment.ErrNotPending
	// ErrNoEnvironment: the session has no sandbox at the moment. The next
	// prompt makes one.
	ErrNoEnvironment = errors.New("session has no running environment; the next prompt makes one")
)

// QueryError says that a query did not complete.
type QueryError = environment.QueryError

// Reasons why the session itself stops a query.
var (
	errInterrupted = errors.New("query was interrupted")
	errUnhealthy   = errors.New("the sandbox does not answer any more")
)
