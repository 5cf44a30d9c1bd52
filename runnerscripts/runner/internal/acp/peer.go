package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// maxMessage is the longest request or reply of an agent, in bytes: a little less
// than what acp-go-sdk reads. Notifications, which carry the conversation, do not
// pass through it and may be longer.
const maxMessage = 10<<20 - 64<<10

// peer is one run of the agent's program and the connection to it.
//
// The lines of the program are looked at here first. Notifications are handled at
// once, on the goroutine that reads them: so the agent waits while the reader of
// events is slow, where the queue of acp-go-sdk would overflow and end the
// connection, and a reply comes after all that was said before it. Requests and
// replies are for acp-go-sdk.
type peer struct {
	process *child.Process
	conn    *acpsdk.Connection
	// heard is when the agent last said something, in nanoseconds.
	heard atomic.Int64
	// prompts gets one for each prompt that is sent, also if that failed.
	prompts chan struct{}
	// broken says that the program does not read its input any more.
	broken atomic.Bool
	// joined is closed when the process and the connection have ended.
	joined chan struct{}

	// Set before the peer is used.
	version string
	init    acpsdk.InitializeResponse
	servers []acpsdk.McpServer
	session acpsdk.SessionId
	options options
}

// rpcLine is a line of JSON-RPC.
type rpcLine struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// handlers take what an agent sends.
type handlers struct {
	line         func(line []byte)                           // every line
	unreadable   func(line []byte, err error)                // one that is no JSON-RPC
	notification func(method string, params json.RawMessage) // in their order
	request      acpsdk.MethodHandler                        // each on a goroutine of its own
}

// dial starts the program and connects to it.
func dial(cmd child.Command, h handlers) (*peer, error) {
	p := &peer{joined: make(chan struct{}), prompts: make(chan struct{}, 1)}
	p.heard.Store(time.Now().UnixNano())
	incoming, feed := io.Pipe()
	outgoing := &lineWriter{started: make(chan struct{}), prompts: p.prompts, broken: &p.broken}
	p.conn = acpsdk.NewConnection(h.request, outgoing, incoming)
	p.conn.SetLogger(slog.New(slog.DiscardHandler))
	process, err := child.Start(cmd, func(line []byte) { p.read(line, feed, h) })
	if err != nil {
		_ = feed.Close()
		<-p.conn.Done()
		return nil, err
	}
	p.process, outgoing.process = process, process
	close(outgoing.started)
	go func() {
		defer close(p.joined)
		select {
		case <-process.Done():
		case <-p.conn.Done(): // it got a message that it does not take
		}
		// What the program still sends is not read any more.
		_ = incoming.Close()
		<-process.Done()
		_ = feed.Close()
		<-p.conn.Done()
	}()
	return p, nil
}

// read takes one line of the program.
func (p *peer) read(line []byte, feed io.Writer, h handlers) {
	p.heard.Store(time.Now().UnixNano())
	h.line(line)
	var l rpcLine
	if err := json.Unmarshal(line, &l); err != nil {
		h.unreadable(line, err)
		return
	}
	switch {
	case l.Method == "" && l.ID == nil:
		h.unreadable(line, errors.New("neither a request nor a reply"))
	case l.ID == nil && l.Method != cancelRequest:
		h.notification(l.Method, l.Params)
	case len(line) > maxMessage:
		h.unreadable(line, errors.New("longer than a message may be"))
		go p.process.Kill() // joined through Done: a reply would be waited for in vain
	default:
		// An error means that the connection has ended, which Done tells better.
		_, _ = feed.Write(append(bytes.Clone(line), '\n'))
	}
}

// cancelRequest withdraws a request; acp-go-sdk implements it.
const cancelRequest = "$/cancel_request"

// lineWriter writes the messages of acp-go-sdk to the program, one a call.
type lineWriter struct {
	started chan struct{} // closed when process is set
	process *child.Process
	prompts chan struct{} // gets one for each prompt that is sent
	broken  *atomic.Bool  // set when the program does not read any more
}

func (w *lineWriter) Write(line []byte) (int, error) {
	<-w.started
	err := w.process.Send(json.RawMessage(line))
	if err != nil {
		w.broken.Store(true)
	}
	var l rpcLine
	if json.Unmarshal(line, &l) == nil && l.Method == acpsdk.AgentMethodSessionPrompt {
		w.prompts <- struct{}{}
	}
	if err != nil {
		return 0, err
	}
	return len(line), nil
}

// silence is how long the agent has said nothing.
func (p *peer) silence() time.Duration {
	return time.Since(time.Unix(0, p.heard.Load()))
}

// ended reports whether the program cannot be talked to any more.
func (p *peer) ended() bool {
	select {
	case <-p.process.Done():
		return true
	case <-p.conn.Done():
		return true
	default:
		return p.broken.Load()
	}
}

// close ends the program, politely first, and waits for its end.
func (p *peer) close() {
	p.process.Close()
	<-p.joined
}

// kill ends the program at once and waits for its end.
func (p *peer) kill() {
	p.process.Kill()
	<-p.joined
}

// call sends a request and waits for its reply. The error is a *acpsdk.RequestError
// if the agent answered with one, else errEnded or the cause of the end of ctx.
func call[T any](ctx context.Context, p *peer, method string, params any) (T, error) {
	reply, err := acpsdk.SendRequest[T](p.conn, ctx, method, params)
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() != nil:
		return reply, context.Cause(ctx)
	case p.ended():
		return reply, errEnded
	}
	return reply, err
}

// errEnded says that the program ended before it answered.
var errEnded = errors.New("the agent ended")

// notify sends a notification. If the program has ended, it needs none.
func (p *peer) notify(ctx context.Context, method string, params any) {
	_ = p.conn.SendNotification(ctx, method, params)
}

// crash says how the program ended; one that only does not talk any more is ended.
func (p *peer) crash(program string) error {
	p.close()
	return agent.Failed("send the prompt again, which resumes the conversation: %s crashed: %s", program, p.process.Crash())
}
