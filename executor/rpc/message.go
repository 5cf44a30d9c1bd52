package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// The error codes: those of JSON-RPC 2.0 and of this protocol.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeNoMethod       = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
	CodeToken          = -32001 // the session token is unknown, expired, used up or of another session
	CodeCredential     = -32002 // no such credential, or none that the session was granted
	CodeDenied         = -32003 // permission was denied, or nobody answered in time
	CodeLimit          = -32004 // too large, or too many at once
	CodeCancelled      = -32800 // the side that asked has cancelled the request
)

// Error is an error answer of the other side, or one for it.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error returns the message and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// Errorf returns an error for the other side.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ErrClosed means that the connection has ended.
var ErrClosed = errors.New("the connection has ended")

// methodCancel is the notification that cancels a request of its sender.
const methodCancel = "$/cancel_request"

// message is a request, which has Method and ID, a notification, which has no ID, or an answer,
// which has no Method.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// parse decodes a message. The error is for the sender.
func parse(line []byte) (m message, failed *Error) {
	if err := json.Unmarshal(line, &m); err != nil {
		return m, Errorf(CodeParse, "send one JSON-RPC message: %v", err)
	}
	switch {
	case m.JSONRPC != "2.0":
		return m, Errorf(CodeInvalidRequest, `give "jsonrpc": "2.0"`)
	case m.Method == "" && len(m.ID) == 0:
		return m, Errorf(CodeInvalidRequest, "give a method, or the id of the request that this answers")
	case len(m.ID) > 0 && (m.ID[0] == '{' || m.ID[0] == '['):
		m.ID = nil // the answer to a request whose ID is none has the ID null
		return m, Errorf(CodeInvalidRequest, "give the id as a number or a text")
	}
	return m, nil
}

// reply returns the answer to a request. An error that is no [*Error] is internal.
func reply(ctx context.Context, id json.RawMessage, result any, err error) message {
	m := message{JSONRPC: "2.0", ID: id}
	if len(id) == 0 {
		m.ID = json.RawMessage("null")
	}
	if err == nil {
		m.Result, err = json.Marshal(result)
	}
	if err == nil {
		return m
	}
	var failed *Error
	switch {
	case ctx.Err() != nil:
		failed = Errorf(CodeCancelled, "the request was cancelled")
	case !errors.As(err, &failed):
		failed = Errorf(CodeInternal, "%v", err)
	}
	m.Result, m.Error = nil, failed
	return m
}

// params decodes parameters. The error is for the sender.
func params[T any](raw json.RawMessage) (v T, err error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, Errorf(CodeInvalidParams, "the params: %v", err)
	}
	return v, nil
}
