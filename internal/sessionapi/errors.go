package sessionapi

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Error is what the server says of a failure.
type Error struct {
	// Code is one of the names in the table of codes.
	Code string `json:"code"`
	// Message says what failed, why, and how to mend it.
	Message string `json:"message"`
}

// ErrorBody is the body of every answer that is an error.
type ErrorBody struct {
	Error Error `json:"error"`
}

// Errors of the server itself.
var (
	// ErrUnauthorized: the token is missing, wrong or expired.
	ErrUnauthorized = errors.New("the server does not accept the token")
	// ErrInternal: the server failed. Its log has the number in the message.
	ErrInternal = errors.New("the server failed")
)

// Code is a kind of error on the wire. Clients get the same sentinel as callers in the server's program.
type Code struct {
	Name   string
	Status int
	Err    error
}

// codes are the kinds of errors, the more specific ones first: an error can be of several.
var codes = []Code{
	{"unauthorized", http.StatusUnauthorized, ErrUnauthorized},
	{"session_not_found", http.StatusNotFound, store.ErrNotFound},
	{"session_locked", http.StatusConflict, store.ErrLocked},
	{"session_closed", http.StatusConflict, session.ErrClosed},
	{"session_busy", http.StatusConflict, session.ErrBusy},
	{"not_pending", http.StatusConflict, session.ErrNotPending},
	{"no_environment", http.StatusConflict, session.ErrNoEnvironment},
	{"pruned", http.StatusGone, session.ErrPruned},
	{"dropped", http.StatusGone, store.ErrDropped},
	{"corrupt", http.StatusInternalServerError, store.ErrCorrupt},
	{"store_newer", http.StatusInternalServerError, store.ErrNewer},
	{"store_busy", http.StatusServiceUnavailable, store.ErrBusy},
	{"continued_elsewhere", http.StatusConflict, store.ErrConflict},
	{"invalid_config", http.StatusBadRequest, environment.ErrConfig},
	{"untrusted", http.StatusConflict, environment.ErrTrust},
	{"path_escape", http.StatusBadRequest, primitives.ErrPathEscape},
	{"is_directory", http.StatusBadRequest, primitives.ErrIsDirectory},
	{"not_directory", http.StatusBadRequest, primitives.ErrNotDirectory},
	{"not_regular", http.StatusBadRequest, primitives.ErrNotRegular},
	{"changed_meanwhile", http.StatusConflict, primitives.ErrConflict},
	{"no_space", http.StatusInsufficientStorage, primitives.ErrNoSpace},
	{"disk_full", http.StatusInsufficientStorage, syscall.ENOSPC},
	{"limit", http.StatusRequestEntityTooLarge, primitives.ErrLimit},
	{"sandbox_terminated", http.StatusBadGateway, primitives.ErrTerminated},
	{"sandbox_unavailable", http.StatusBadGateway, primitives.ErrUnavailable},
	{"unsupported", http.StatusNotImplemented, errors.ErrUnsupported},
	{"invalid", http.StatusBadRequest, fs.ErrInvalid},
	{"not_found", http.StatusNotFound, fs.ErrNotExist},
	{"exists", http.StatusConflict, fs.ErrExist},
	{"forbidden", http.StatusForbidden, fs.ErrPermission},
	{"cancelled", http.StatusRequestTimeout, context.Canceled},
	{"timeout", http.StatusGatewayTimeout, context.DeadlineExceeded},
	{"internal", http.StatusInternalServerError, ErrInternal},
}

// Codes returns the kinds of errors.
func Codes() []Code { return append([]Code(nil), codes...) }

// CodeOf returns the kind of an error; ok is false if it is of none.
func CodeOf(err error) (c Code, ok bool) {
	for _, c := range codes {
		if errors.Is(err, c.Err) {
			return c, true
		}
	}
	return Code{}, false
}

// Err returns the error as a Go error, which wraps the sentinel of its code.
func (e Error) Err() error {
	for _, c := range codes {
		if c.Name == e.Code {
			return &remoteError{e, c.Err}
		}
	}
	return &remoteError{e, ErrInternal} // of a newer server
}

// remoteError is an error of the server. It wraps what says its code.
type remoteError struct {
	said Error
	err  error
}

// Error returns the server's message.
func (e *remoteError) Error() string { return e.said.Message }

func (e *remoteError) Unwrap() error { return e.err }
