package acpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// The codes of JSON-RPC, and those of the protocol.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeNotFound       = -32002
	codeCancelled      = -32800
)

var (
	// errGone: the client has closed its end.
	errGone = errors.New("the client has gone")
	// errWithdrawn: the client has cancelled the request with $/cancel_request.
	errWithdrawn = &acp.RequestError{Code: codeCancelled, Message: "the request was cancelled", Data: map[string]any{"code": "cancelled"}}
)

// describe returns how a client sees an error that is none of the protocol.
func describe(err error) apierror.Error {
	code, known := sessionapi.Codes().Of(err)
	if !known {
		code.Name = "internal"
	}
	return apierror.Describe(code, err)
}

// requestError returns the protocol's form of an error. The code in its data is that of the HTTP interface, or the failure code
// of a query, with its detail.
func (s *server) requestError(err error) *acp.RequestError {
	if e, ok := errors.AsType[*acp.RequestError](err); ok {
		return e
	}
	if q, ok := errors.AsType[*session.QueryError](err); ok {
		data := map[string]any{"code": q.Failure.Code}
		if q.Failure.HTTPStatus != 0 {
			data["httpStatus"] = q.Failure.HTTPStatus
		}
		if q.Failure.Detail != nil { // as the event query_failed has it
			data["detail"] = q.Failure.Detail
		}
		return &acp.RequestError{Code: codeInternal, Message: q.Failure.Message, Data: data}
	}
	said := s.cfg.Describe(err)
	e := &acp.RequestError{Code: codeInternal, Message: said.Message, Data: map[string]any{"code": said.Code}}
	switch {
	case errors.Is(err, store.ErrNotFound):
		e.Code = codeNotFound
	case errors.Is(err, session.ErrBusy), errors.Is(err, store.ErrLocked), errors.Is(err, session.ErrClosed), errors.Is(err, apierror.ErrTooMany):
		e.Code = codeInvalidRequest
	case errors.Is(err, fs.ErrInvalid), errors.Is(err, environment.ErrConfig), errors.Is(err, fs.ErrPermission), errors.Is(err, errors.ErrUnsupported):
		e.Code = codeInvalidParams
	case errors.Is(err, context.Canceled):
		e.Code = codeCancelled
	}
	return e
}

// Invalid returns an error about what the client has sent.
func Invalid(format string, args ...any) error {
	return &acp.RequestError{Code: codeInvalidParams, Message: fmt.Sprintf(format, args...), Data: map[string]any{"code": "invalid"}}
}

// unknown returns the error for a session that does not exist for the client.
func unknown(id acp.SessionId) error {
	return &acp.RequestError{
		Code: codeNotFound, Message: fmt.Sprintf("begin a session with session/new: there is none with the id %q", id),
		Data: map[string]any{"code": "session_not_found"},
	}
}

// decode decodes the parameters of a request.
func decode[T any](params json.RawMessage) (T, error) {
	var v T
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	if err := json.Unmarshal(params, &v); err != nil {
		return v, Invalid("%v; send the parameters as the protocol has them", err)
	}
	return v, nil
}
