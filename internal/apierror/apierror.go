// Package apierror has the errors of the HTTP interface: how a server names them, and how a client gets the same sentinels.
package apierror

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Error is what the server says of a failure.
type Error struct {
	// Code is one of the names in a [Table].
	Code string `json:"code"`
	// Message says what failed, why, and how to mend it.
	Message string `json:"message"`
	// Setting and Problem are those of a primitives.SettingError.
	Setting string `json:"setting,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Body is the body of every answer that is an error.
type Body struct {
	Error Error `json:"error"`
}

// Errors of the server itself.
var (
	// ErrUnauthorized: the token is missing, wrong or expired.
	ErrUnauthorized = errors.New("the server does not accept the token")
	// ErrTooMany: a caller sends too many requests, or has too many sessions.
	ErrTooMany = errors.New("too many requests or sessions")
	// ErrInternal: the server failed. Its log has the number in the message.
	ErrInternal = errors.New("the server failed")
)

// Code is a kind of error on the wire. Clients get the same sentinel as callers in the server's program.
type Code struct {
	Name   string
	Status int
	Err    error
}

// Table has the kinds of errors, the more specific ones first: an error can be of several.
type Table []Code

// Common returns the kinds of errors of sandboxes and of the server itself.
func Common() Table {
	return Table{
		{"unauthorized", http.StatusUnauthorized, ErrUnauthorized},
		{"too_many", http.StatusTooManyRequests, ErrTooMany},
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
}

// Of returns the kind of an error; ok is false if it is of none.
func (t Table) Of(err error) (c Code, ok bool) {
	for _, c := range t {
		if errors.Is(err, c.Err) {
			return c, true
		}
	}
	return Code{}, false
}

// Describe returns how the server says err, which is of the kind c.
func Describe(c Code, err error) Error {
	e := Error{Code: c.Name, Message: err.Error()}
	if wrong, ok := errors.AsType[*primitives.SettingError](err); ok {
		e.Setting, e.Problem = wrong.Setting, wrong.Problem
	}
	return e
}

// Err returns what the server said as a Go error, which wraps the sentinel of its code.
func (t Table) Err(e Error) error {
	kind := ErrInternal // of a newer server
	for _, c := range t {
		if c.Name == e.Code {
			kind = c.Err
			break
		}
	}
	if e.Setting != "" {
		kind = &primitives.SettingError{Setting: e.Setting, Problem: e.Problem, Err: kind}
	}
	return &remoteError{e.Message, kind}
}

// remoteError is an error of the server. It wraps what says its code.
type remoteError struct {
	message string
	err     error
}

// Error returns the server's message.
func (e *remoteError) Error() string { return e.message }

func (e *remoteError) Unwrap() error { return e.err }
