package acp

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// peer is one run of the agent's program.
//
// It handles lines in order, on the goroutine that reads them: a slow reader of events blocks
// the agent, and a reply is handled after all earlier messages.
type peer struct {
	*jsonrpc.Peer
	// heard is the time of the agent's last message, in nanoseconds.
	heard *atomic.Int64

	// Set before the peer is used.
	version string
	init    acpsdk.InitializeResponse
	servers []acpsdk.McpServer
	session acpsdk.SessionId
	options options
}

// dial starts the program. Its messages go to c.
func (c *conversation) dial(cmd child.Command) (*peer, error) {
	heard := &atomic.Int64{}
	heard.Store(time.Now().UnixNano())
	rpc, err := jsonrpc.Start(cmd, "2.0", func(p *jsonrpc.Peer, line []byte) {
		heard.Store(time.Now().UnixNano())
		c.read(p, line)
	})
	if err != nil {
		return nil, err
	}
	return &peer{Peer: rpc, heard: heard}, nil
}

// cancelRequest withdraws a request of the agent.
const cancelRequest = "$/cancel_request"

// read handles one line of the program.
func (c *conversation) read(p *jsonrpc.Peer, line []byte) {
	c.raw(line)
	var m jsonrpc.Message
	if err := json.Unmarshal(line, &m); err != nil {
		c.unreadable(line, err)
		return
	}
	switch {
	case m.Method == "" && m.ID == nil:
		c.unreadable(line, errors.New("neither a request nor a reply"))
	case m.Method == "":
		p.Replied(m)
	case m.ID != nil:
		c.requested(p, m)
	case m.Method == cancelRequest:
		c.withdrawn(p, m.Params)
	default:
		c.notified(m.Method, m.Params)
	}
}

// silence returns the time since the agent's last message.
func (p *peer) silence() time.Duration {
	return time.Since(time.Unix(0, p.heard.Load()))
}

// ended reports whether the program has ended.
func (p *peer) ended() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// call sends a request and waits for its reply.
func call[T any](ctx context.Context, p *peer, method string, params any) (reply T, err error) {
	err = p.Call(ctx, jsonrpc.Request{Method: method, Params: params, Result: &reply})
	return reply, err
}

// crash describes how the program ended.
func (p *peer) crash(program string) error {
	p.Close()
	return agent.Failed("send the prompt again, which resumes the conversation: %s crashed: %s", program, p.Crash())
}
