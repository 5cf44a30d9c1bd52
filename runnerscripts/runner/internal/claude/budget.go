package claude

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// The program has its own cost limit, but for the life of the process: it would end all later
// queries at once. So the driver asks for the cost during a query, and stops the query.

// usageReply is the reply to get_usage.
type usageReply struct {
	Session struct {
		TotalCostUSD float64 `json:"total_cost_usd"` // since the session began
	} `json:"session"`
}

func usageRequest() map[string]any {
	return map[string]any{"subtype": "get_usage", "skip_behaviors": true}
}

// openBudget stores the cost of the session before a query.
func (c *conversation) openBudget(ctx context.Context, p *child.Process) error {
	if c.profile.BudgetUSD == 0 {
		return nil
	}
	raw, err := c.request(ctx, p, usageRequest())
	if err != nil {
		return err
	}
	var reply usageReply
	if err := json.Unmarshal(raw, &reply); err != nil {
		return agent.Failed("use a version of Claude Code that tells what it costs: %v", err)
	}
	c.mu.Lock()
	c.costBefore = reply.Session.TotalCostUSD
	c.mu.Unlock()
	return nil
}

// checkBudget stops the program's work if the cost since the start of the last query is too
// high. It runs on the reader's goroutine, after each message.
func (c *conversation) checkBudget() {
	if c.profile.BudgetUSD == 0 {
		return
	}
	c.mu.Lock()
	turn := c.turns
	c.mu.Unlock()
	c.requestLater(usageRequest(), func(raw json.RawMessage) {
		var reply usageReply
		if json.Unmarshal(raw, &reply) == nil {
			c.keepBudget(turn, reply.Session.TotalCostUSD)
		}
	})
}

// keepBudget stores the cost of the session after a turn.
func (c *conversation) keepBudget(turn int, total float64) {
	limit := c.profile.BudgetUSD
	c.mu.Lock()
	spent, p := total-c.costBefore, c.process
	what, works := "the query", true
	if c.query == nil {
		// A reply after the turn's result must not end the next turn.
		what, works = "what a command in the background has led to", c.state != stateIdle && turn == c.turns
	}
	stop := spent >= limit && works && c.breakOffLocked()
	c.mu.Unlock()
	if !stop {
		return
	}
	interrupt(p)
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
		Level: "warn", Message: fmt.Sprintf("%s is stopped: $%.4f were spent since the query began, and its budget is $%.4f", what, spent, limit),
	})
}

// breakOffLocked marks the current work as over budget. It returns false if there is none, or it is
// already marked. The caller holds c.mu.
func (c *conversation) breakOffLocked() bool {
	over := &c.unasked.overBudget
	if q := c.query; q != nil {
		if !q.started || q.finished {
			return false
		}
		over = &q.overBudget
	}
	known := *over
	*over = true
	return !known
}
