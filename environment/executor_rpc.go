package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/gate"
	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/executor/rpc"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// usesRPC reports whether the agent is an executor that uses the JSON-RPC of its host.
func (c Config) usesRPC() bool { return c.executor().RPC }

// executor returns the profile of the agent; the zero value if it is no executor.
func (c Config) executor() (p executor.Profile) {
	if c.Agent.Name != commandAgent || json.Unmarshal(c.Agent.Config, &p) != nil {
		return executor.Profile{}
	}
	return p
}

// checkDeliver returns an error for keys that nothing could deliver.
func (c Config) checkDeliver() error {
	if len(c.Deliver) > 0 && c.Agent.Name != "" && !c.usesRPC() {
		return fmt.Errorf("%w: deliver: keys are delivered to an executor with rpc: true in its profile only; leave it out: other agents use the gateway", ErrConfig)
	}
	for _, name := range c.Deliver {
		if _, ok := c.Credentials[name]; !ok {
			return fmt.Errorf("%w: deliver: there is no credential %q; name one of credentials", ErrConfig, name)
		}
	}
	return nil
}

// questions connects what asks from outside of the agent's protocol to the running query: the JSON-RPC of an executor, and the
// gateway, which holds calls.
type questions struct {
	ready   chan struct{} // closed when queries is set
	queries *query.Queries
}

// begin connects the queries. It is called once.
func (h *questions) begin(q *query.Queries) {
	h.queries = q
	close(h.ready)
}

// await returns the queries; nil if ctx ends before there are any. An executor that waited for the gateway of this program asks
// as soon as that is open, which is before the queries begin.
func (h *questions) await(ctx context.Context) *query.Queries {
	select {
	case <-h.ready:
		return h.queries
	case <-ctx.Done():
		return nil
	}
}

// serve adds what asks to what the gateway serves.
func (h *questions) serve(c Config, to *gate.Config) {
	if c.usesRPC() {
		to.Executor = &rpc.Config{
			OnPermission: h.ask, OnMessage: h.report, Logger: c.Logger,
			PermissionTimeout: -1, // the query limits the time
		}
	}
	switch {
	case c.holds():
		to.Hold = h.judge((*query.Queries).Hold)
	case c.refuses():
		to.Hold = h.judge((*query.Queries).Refuse)
	}
}

// judge returns what decides about a call in the answer of a model.
func (h *questions) judge(by func(*query.Queries, context.Context, string, json.RawMessage) string) func(context.Context, string, json.RawMessage) string {
	return func(ctx context.Context, tool string, input json.RawMessage) (refusal string) {
		if q := h.await(ctx); q != nil {
			return by(q, ctx, tool, input)
		}
		return "The environment is not ready."
	}
}

func (h *questions) ask(ctx context.Context, p rpc.Permission) PermissionDecision {
	q := h.await(ctx)
	if q == nil {
		return p.Reject("No query runs.")
	}
	return q.Ask(ctx, p.PermissionRequest)
}

// maxShownMessage is how many bytes of an executor's JSON are the message of a log event.
const maxShownMessage = 1024

// report reports a message as a log event.
func (h *questions) report(ctx context.Context, m rpc.Message) {
	q := h.await(ctx)
	if q == nil {
		return
	}
	event := runnerscripts.Log{Level: "info", Stream: "executor"}
	if json.Unmarshal(m.Body, &event.Message) != nil { // it is no text
		var shown bytes.Buffer
		_ = json.Compact(&shown, m.Body) // it is JSON
		event.Message, event.Data = strings.ToValidUTF8(string(shown.Next(maxShownMessage)), "\uFFFD"), m.Body
	}
	q.Report(ctx, runnerscripts.TypeLog, event)
}

// Executor returns the executor in the sandbox that uses the JSON-RPC of its host, for requests to it:
// rpc.Ping, rpc.ExecutePrompt. They wait until the executor reads them. The error is
// errors.ErrUnsupported if the agent is no executor with rpc: true in its profile.
func (e *Environment) Executor() (rpc.Caller, error) {
	if r := e.gate.Executor(); r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("executor: %w: the agent is no executor with rpc: true in its profile", errors.ErrUnsupported)
}
