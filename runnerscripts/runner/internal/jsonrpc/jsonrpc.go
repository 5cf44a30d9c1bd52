// Package jsonrpc speaks JSON-RPC with the program of an agent: requests and notifications in both
// directions, one message per line.
package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// Message is a line of the protocol. A request has a Method and an ID, a notification only a
// Method, a reply only an ID.
type Message struct {
	JSONRPC string          `json:"jsonrpc,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// Error is an error reply of the program.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// The error codes for [Peer.Refuse].
const (
	MethodNotFound = -32601
	InvalidParams  = -32602
)

func (e *Error) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// ErrEnded means that the program ended before it replied, or no longer reads.
var ErrEnded = errors.New("the program has ended")

// Peer is a running program and its pending requests. Its methods are safe for concurrent use.
type Peer struct {
	*child.Process
	version string

	mu      sync.Mutex
	last    int
	waiting map[string]func(Message)
}

// Start starts a program. version is the member "jsonrpc" of sent messages; empty omits it. Start
// calls handle with each line of the program, one at a time. handle must pass replies to
// [Peer.Replied], and must not wait for the program.
func Start(cmd child.Command, version string, handle func(p *Peer, line []byte)) (*Peer, error) {
	p := &Peer{version: version}
	started := make(chan struct{})
	process, err := child.Start(cmd, func(line []byte) {
		<-started
		handle(p, line)
	})
	if err != nil {
		return nil, err
	}
	p.Process = process
	close(started)
	return p, nil
}

// Send sends a request. It calls done with the reply on the reader's goroutine; done must not
// block. A nil done ignores the reply. cancel drops the request. It reports whether the reply was
// still pending, in which case done is never called.
func (p *Peer) Send(method string, params any, done func(Message)) (cancel func() bool, err error) {
	p.mu.Lock()
	p.last++
	id := strconv.Itoa(p.last)
	if done != nil {
		if p.waiting == nil {
			p.waiting = make(map[string]func(Message))
		}
		p.waiting[id] = done
	}
	p.mu.Unlock()
	err = p.write(json.RawMessage(id), method, params)
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		_, waits := p.waiting[id]
		delete(p.waiting, id)
		return waits
	}, err
}

// Notify sends a notification. An error means that the program no longer reads.
func (p *Peer) Notify(method string, params any) error { return p.write(nil, method, params) }

func (p *Peer) write(id json.RawMessage, method string, params any) error {
	m := Message{JSONRPC: p.version, ID: id, Method: method}
	if params != nil {
		var err error
		if m.Params, err = json.Marshal(params); err != nil {
			return err
		}
	}
	return p.Process.Send(m)
}

// Request is a request for [Peer.Call].
type Request struct {
	Method         string
	Params, Result any // Result points to the destination of the result; nil ignores the result
	// Sent, if not nil, is called after the request was written or the write failed.
	Sent func()
	// Then, if not nil, is called after a successful reply, before the next line of the program
	// is read.
	Then func()
}

// Call sends a request and waits for the reply. Its error wraps an [*Error] if the program replied
// with one, wraps [ErrEnded], or is the cause of the end of ctx.
func (p *Peer) Call(ctx context.Context, r Request) error {
	reply := make(chan error, 1)
	cancel, unsent := p.Send(r.Method, r.Params, func(m Message) { reply <- m.decode(r) })
	defer cancel()
	if r.Sent != nil {
		r.Sent()
	}
	if unsent != nil {
		p.Close() // usually the program has ended; otherwise it no longer reads
	}
	select {
	case err := <-reply:
		return err
	case <-p.Done():
	case <-ctx.Done():
		if !cancel() {
			return <-reply // the reply came first
		}
		return context.Cause(ctx)
	}
	select {
	case err := <-reply: // the last reply of an ended program
		return err
	default:
		return fmt.Errorf("%s: %w: %s", r.Method, ErrEnded, p.Crash())
	}
}

// decode decodes a reply into r.Result and calls r.Then.
func (m Message) decode(r Request) error {
	if m.Error != nil {
		return fmt.Errorf("%s: %w", r.Method, m.Error)
	}
	if r.Result != nil && len(m.Result) > 0 {
		if err := json.Unmarshal(m.Result, r.Result); err != nil {
			return fmt.Errorf("the reply to %s is not understood: %w", r.Method, err)
		}
	}
	if r.Then != nil {
		r.Then()
	}
	return nil
}

// Replied passes a reply to the request that waits for it.
func (p *Peer) Replied(m Message) {
	p.mu.Lock()
	done := p.waiting[string(m.ID)]
	delete(p.waiting, string(m.ID))
	p.mu.Unlock()
	if done != nil {
		done(m)
	}
}

// Answer replies to a request of the program.
func (p *Peer) Answer(id json.RawMessage, result any) error {
	encoded, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return p.Process.Send(Message{JSONRPC: p.version, ID: id, Result: encoded})
}

// Refuse replies to a request of the program with an error.
func (p *Peer) Refuse(id json.RawMessage, code int, why string) error {
	return p.Process.Send(Message{JSONRPC: p.version, ID: id, Error: &Error{Code: code, Message: why}})
}
