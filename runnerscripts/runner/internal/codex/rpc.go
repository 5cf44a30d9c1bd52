package codex

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// message is any line of the protocol: a request has a method and an id, a
// notification a method alone, and a reply an id alone.
type message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *rpcError       `json:"error,omitempty"`
}

// rpcError is why a request failed.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// The codes of errors.
const errMethodNotFound = -32601

func (e *rpcError) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// peer is a started program, with the requests to it that wait for a reply.
type peer struct {
	*child.Process

	mu      sync.Mutex
	last    int
	waiting map[string]func(message)
}

// send sends a request. done gets the reply on the reader's goroutine, which it
// must not hold up; nil means that it is not wanted. It returns how to give up.
func (p *peer) send(method string, params any, done func(message)) (cancel func()) {
	p.mu.Lock()
	p.last++
	id := strconv.Itoa(p.last)
	if done != nil {
		p.waiting[id] = done
	}
	p.mu.Unlock()
	// A write error means that the program has ended; Done tells it better.
	_ = p.Send(map[string]any{"id": json.RawMessage(id), "method": method, "params": params})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, id)
	}
}

// call sends a request and decodes the reply into result, unless that is nil. An
// error of the program's is an *rpcError.
func (p *peer) call(ctx context.Context, method string, params, result any) error {
	return p.callThen(ctx, method, params, result, func() {})
}

// callThen does the same, and calls then before the next line of the program is
// read.
func (p *peer) callThen(ctx context.Context, method string, params, result any, then func()) error {
	reply := make(chan error, 1)
	cancel := p.send(method, params, func(m message) { reply <- m.decode(method, result, then) })
	defer cancel()
	select {
	case err := <-reply:
		return err
	case <-p.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-reply: // its last words
		return err
	default:
		return fmt.Errorf("%s: %w: %s", method, errEnded, p.Crash())
	}
}

// decode decodes a reply.
func (m message) decode(method string, result any, then func()) error {
	if m.Error != nil {
		return fmt.Errorf("%s: %w", method, m.Error)
	}
	if result != nil {
		if err := json.Unmarshal(m.Result, result); err != nil {
			return fmt.Errorf("the reply to %s is not understood: %w", method, err)
		}
	}
	then()
	return nil
}

// replied hands a reply to the request that waits for it.
func (p *peer) replied(m message) {
	p.mu.Lock()
	done := p.waiting[string(m.ID)]
	delete(p.waiting, string(m.ID))
	p.mu.Unlock()
	if done != nil {
		done(m)
	}
}

// answer replies to a request of the program.
func (p *peer) answer(id json.RawMessage, result any) error {
	return p.Send(map[string]any{"id": id, "result": result})
}

// refuse replies to a request of the program that nobody can answer.
func (p *peer) refuse(id json.RawMessage, method string) {
	_ = p.Send(map[string]any{"id": id, "error": rpcError{
		Code: errMethodNotFound, Message: "this client does not answer " + method,
	}})
}
