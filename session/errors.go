package session

import (
	"errors"

	"github.com/agentenv-dev/agentenv/environment"
)

// The errors of a session, besides those of the store and the environment, which the methods
// wrap.
var (
	// ErrClosed: the session was closed.
	ErrClosed = errors.New("session is closed; open it again by its id")
	// ErrBusy: the session does not accept a prompt, because a query runs and Config.RejectBusy
	// is set, or because the queue is full.
	ErrBusy = errors.New("session is busy; wait for the running query or interrupt it")
	// ErrNotPending: the permission request is answered, withdrawn or unknown. It is
	// environment.ErrNotPending.
	ErrNotPending = environment.ErrNotPending
	// ErrPruned: the files of the checkpoint were removed; see Config.KeepPeriodic.
	ErrPruned = errors.New("the files of the checkpoint were removed, as it was old")
	// ErrNoEnvironment: the session has no sandbox. The next prompt creates one.
	ErrNoEnvironment = errors.New("session has no running environment; the next prompt makes one")
)

// QueryError says that a query did not complete.
type QueryError = environment.QueryError

// Reasons why the session itself stops a query.
var (
	errInterrupted = errors.New("query was interrupted")
	errUnhealthy   = errors.New("the sandbox does not answer any more")
)
