package claude

import (
	"context"
	"crypto/rand"
	"encoding/json"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// request sends a control request and waits for its reply.
func (c *conversation) request(ctx context.Context, p *child.Process, body any) (json.RawMessage, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	id, reply := rand.Text(), make(chan controlResponse, 1)
	c.expect(id, func(r controlResponse) { reply <- r })
	defer c.expect(id, nil)
	// A write error means that the program has ended; p.Done() reports that better.
	_ = p.Send(controlLine{Type: "control_request", RequestID: id, Request: raw})
	select {
	case r := <-reply:
		return r.result()
	case <-p.Done():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case r := <-reply: // the last reply of an ended program
		return r.result()
	default:
		return nil, &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailAgent,
			Message: "check the agent's model, mode and settings: Claude Code has ended: " + p.Crash(),
		}
	}
}

// result returns the result of a reply.
func (r controlResponse) result() (json.RawMessage, error) {
	if r.Subtype != "success" {
		return nil, agent.Invalid("ask Claude Code for something that it can do: %s", r.Error)
	}
	return r.Response, nil
}

// requestLater sends a control request without waiting. handle receives a successful reply on
// the reader's goroutine. A program that has ended does not reply.
func (c *conversation) requestLater(body any, handle func(json.RawMessage)) {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // cannot happen: the bodies are texts
	}
	id := rand.Text()
	c.expect(id, func(r controlResponse) {
		if r.Subtype == "success" {
			handle(r.Response)
		}
	})
	c.mu.Lock()
	p := c.process
	c.mu.Unlock()
	_ = p.Send(controlLine{Type: "control_request", RequestID: id, Request: raw})
}

// expect registers the function for the reply to a request; nil drops the reply.
func (c *conversation) expect(id string, take func(controlResponse)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if take == nil {
		delete(c.replies, id)
		return
	}
	c.replies[id] = take
}

// replied passes a reply to its waiting request.
func (c *conversation) replied(l controlLine) {
	if l.Response == nil {
		return
	}
	c.mu.Lock()
	take := c.replies[l.Response.RequestID]
	delete(c.replies, l.Response.RequestID)
	c.mu.Unlock()
	if take != nil {
		take(*l.Response)
	}
}
