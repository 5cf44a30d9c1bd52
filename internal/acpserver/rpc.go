package acpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	acp "github.com/coder/acp-go-sdk"
)

// message is a message of the client: a request, a notification, which has no ID, or an
// answer, which has no Method.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// maxAnswer is the longest answer of a client, in bytes; the connection would stop at 10 MiB without a word.
const maxAnswer = 4 << 20

// cancelRequest withdraws a request of either side.
const cancelRequest = "$/cancel_request"

// handler accepts a request and returns the work for it. Handlers are called in the order of the
// requests; their work runs concurrently. ctx is done when the request is cancelled or the
// connection ends.
type handler func(ctx context.Context, params json.RawMessage) (work, error)

// work answers a request. life is done when the connection ends, not when the request is cancelled.
type work func(life context.Context) (any, error)

// answered is the result of a request after whose answer something begins.
type answered struct {
	result any
	then   func(life context.Context)
}

// read handles the messages of the client in order, until EOF. It passes answers to the
// connection, through feed.
func (s *server) read(life context.Context, in Stream, feed io.Writer) error {
	handlers := s.handlers()
	for {
		line, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the client: %w", err)
		}
		if life.Err() != nil {
			return context.Cause(life)
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			s.reply(nil, nil, &acp.RequestError{Code: codeParse, Message: fmt.Sprintf("send one JSON-RPC message a line: %v", err)})
			continue
		}
		switch {
		case m.Method == "" && len(m.ID) > 0:
			var answer bytes.Buffer
			_ = json.Compact(&answer, line) // it is valid; the connection reads lines
			if answer.Len() > maxAnswer {
				return fmt.Errorf("read from the client: an answer has %d bytes; at most %d are read", answer.Len(), maxAnswer)
			}
			answer.WriteByte('\n')
			// Write fails if the connection has ended; then no request waits for an answer.
			_, _ = feed.Write(answer.Bytes())
		case len(m.ID) > 0:
			s.request(life, handlers[m.Method], m)
		default:
			s.notification(life, m)
		}
	}
}

// request accepts a request, and runs its work in a goroutine.
func (s *server) request(life context.Context, h handler, m message) {
	if h == nil {
		s.reply(m.ID, nil, &acp.RequestError{Code: codeNoMethod, Message: fmt.Sprintf("agentenv has no method %q", m.Method)})
		return
	}
	if err := s.cfg.Admit(); err != nil {
		s.reply(m.ID, nil, err)
		return
	}
	ctx, cancel := context.WithCancelCause(life)
	do, err := h(ctx, m.Params)
	if err != nil {
		cancel(nil)
		s.reply(m.ID, nil, err)
		return
	}
	id := string(m.ID)
	begun := s.begin(func() {
		defer cancel(nil)
		result, err := do(life)
		s.mu.Lock()
		delete(s.inflight, id)
		s.mu.Unlock()
		if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), errWithdrawn) {
			err = errWithdrawn
		}
		more, _ := result.(answered)
		if more.then != nil {
			result = more.result
		}
		s.reply(m.ID, result, err)
		if more.then != nil && err == nil {
			more.then(life)
		}
	}, func() { s.inflight[id] = cancel })
	if !begun {
		cancel(nil)
	}
}

// begin runs do in a goroutine that the end of the connection waits for, after locked, which it calls with the lock. It returns
// false if the connection ends.
func (s *server) begin(do, locked func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // Serve may wait for the calls already
		return false
	}
	locked()
	s.calls.Go(do)
	return true
}

// notification handles a message that needs no answer. It ignores unknown ones.
func (s *server) notification(life context.Context, m message) {
	switch m.Method {
	case acp.AgentMethodSessionCancel:
		var p acp.CancelNotification
		if err := json.Unmarshal(m.Params, &p); err != nil {
			s.log.Warn("a cancellation cannot be read", "error", err)
			return
		}
		if c := s.find(p.SessionId); c != nil && !c.cancelPrompt() {
			if turn := c.running(); turn != nil { // that of now: the next message may be a prompt
				s.begin(func() { c.interrupt(life, turn) }, func() {})
			}
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
			cancel(errWithdrawn)
		}
	default:
		s.log.Debug("the client tells what agentenv does not know", "method", m.Method)
	}
}

// answer is the response to a request of the client.
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
		a.Result, a.Error = nil, s.requestError(err)
	}
	line, err := json.Marshal(a)
	if err != nil {
		a.Result, a.Error = nil, &acp.RequestError{Code: codeInternal, Message: err.Error()}
		line, _ = json.Marshal(a) // a struct of strings and a number cannot fail
	}
	_, _ = s.out.Write(append(line, '\n')) // the sender ends the connection if it fails
}

// tell sends a notification about a session. It blocks while the client does not read, at most
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
