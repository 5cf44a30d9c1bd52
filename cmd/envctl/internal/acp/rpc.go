package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// message is a line of the editor: a request, a notification, which has no ID, or an
// answer, which has no Method.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// The codes of JSON-RPC, and one of the protocol's own.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeNotFound       = -32002
)

// cancelRequest withdraws a request of either side.
const cancelRequest = "$/cancel_request"

// read handles the messages of the editor in order, until EOF. It passes answers to the
// connection, through feed.
func (s *server) read(ctx context.Context, in io.Reader, feed io.Writer) error {
	handlers := s.handlers()
	lines := runnerscripts.NewLineReader(in, maxMessage)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the editor: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			s.reply(nil, nil, &acp.RequestError{Code: codeParse, Message: fmt.Sprintf("send one JSON-RPC message a line: %v", err)})
			continue
		}
		switch {
		case m.Method == "" && len(m.ID) > 0:
			// Write fails if the connection has ended; then no request waits for an answer.
			_, _ = feed.Write(append(bytes.Clone(line), '\n'))
		case len(m.ID) > 0:
			s.request(ctx, handlers[m.Method], m)
		default:
			s.notification(m)
		}
	}
}

// request accepts a request, and runs its work in a goroutine.
func (s *server) request(ctx context.Context, h handler, m message) {
	if h == nil {
		s.reply(m.ID, nil, &acp.RequestError{Code: codeNoMethod, Message: fmt.Sprintf("agentenv has no method %q", m.Method)})
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	do, err := h(ctx, m.Params)
	if err != nil {
		cancel()
		s.reply(m.ID, nil, err)
		return
	}
	id := string(m.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // Serve may wait for the calls already
		cancel()
		return
	}
	s.inflight[id] = cancel
	s.calls.Go(func() {
		defer cancel()
		result, err := do()
		s.mu.Lock()
		delete(s.inflight, id)
		s.mu.Unlock()
		s.reply(m.ID, result, err)
	})
}

// notification handles a message that needs no answer. It ignores unknown ones.
func (s *server) notification(m message) {
	switch m.Method {
	case acp.AgentMethodSessionCancel:
		var p acp.CancelNotification
		if err := json.Unmarshal(m.Params, &p); err != nil {
			s.log.Warn("a cancellation cannot be read", "error", err)
			return
		}
		if c, err := s.find(p.SessionId); err == nil {
			c.cancelPrompt()
		}
	case cancelRequest:
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			s.log.Warn("a cancellation cannot be read", "error", err)
			return
		}
		s.mu.Lock()
		cancel := s.inflight[string(p.RequestID)]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	default:
		s.log.Debug("the editor tells what agentenv does not know", "method", m.Method)
	}
}

// answer is the response to a request of the editor.
type answer struct {
	JSONRPC string            `json:"jsonrpc"`
	ID      json.RawMessage   `json:"id"`
	Result  any               `json:"result,omitempty"`
	Error   *acp.RequestError `json:"error,omitempty"`
}

// reply answers a request.
func (s *server) reply(id json.RawMessage, result any, err error) {
	if id == nil {
		id = json.RawMessage("null")
	}
	a := answer{JSONRPC: "2.0", ID: id, Result: result}
	if err != nil {
		s.log.Debug("a request failed", "error", err)
		a.Result, a.Error = nil, requestError(err)
	}
	line, err := json.Marshal(a)
	if err != nil {
		a.Result, a.Error = nil, &acp.RequestError{Code: codeInternal, Message: err.Error()}
		line, _ = json.Marshal(a) // a struct of strings and a number cannot fail
	}
	_, _ = s.out.Write(append(line, '\n')) // the writer ends the connection if it fails
}

// tell sends a notification about a session. It blocks while the editor does not read, at most
// until silent is closed.
func (s *server) tell(ctx context.Context, id acp.SessionId, u acp.SessionUpdate) error {
	select {
	case <-s.silent:
		return nil
	default:
	}
	sent := make(chan error, 1)
	go func() {
		sent <- s.conn.SendNotification(ctx, acp.ClientMethodSessionUpdate, acp.SessionNotification{SessionId: id, Update: u})
	}()
	select {
	case err := <-sent:
		return err
	case <-s.silent:
		return nil
	}
}

// requestError returns the protocol's form of an error.
func requestError(err error) *acp.RequestError {
	if e := new(acp.RequestError); errors.As(err, &e) {
		return e
	}
	e := &acp.RequestError{Code: codeInternal, Message: err.Error()}
	q := new(session.QueryError)
	switch {
	case errors.As(err, &q):
		e.Message = q.Failure.Message
		data := map[string]any{"code": q.Failure.Code}
		if q.Failure.HTTPStatus != 0 {
			data["httpStatus"] = q.Failure.HTTPStatus
		}
		e.Data = data
	case errors.Is(err, session.ErrBusy):
		e.Code = codeInvalidRequest
	case errors.Is(err, fs.ErrInvalid), errors.Is(err, environment.ErrConfig):
		e.Code = codeInvalidParams
	}
	return e
}

// invalid returns an error about what the editor has sent.
func invalid(format string, args ...any) error {
	return &acp.RequestError{Code: codeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

// decode decodes the parameters of a request.
func decode[T any](params json.RawMessage) (T, error) {
	var v T
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	if err := json.Unmarshal(params, &v); err != nil {
		return v, invalid("%v; send the parameters as the protocol has them", err)
	}
	return v, nil
}

// lineWriter writes one message a call. If a write fails, it ends the connection.
type lineWriter struct {
	broken context.CancelCauseFunc

	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.w.Write(line)
	if err != nil {
		l.broken(fmt.Errorf("write to the editor: %w", err))
	}
	return n, err
}
