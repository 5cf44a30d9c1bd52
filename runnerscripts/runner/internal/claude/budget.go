package claude

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// The program has a limit of its own for what it costs, but one for the life of
// the process: it would end the queries that follow at once. So the cost is asked
// for during a query, and the query stopped.

// usageReply is the reply to get_usage.
type usageReply struct {
	Session struct {
		TotalCostUSD float64 `json:"total_cost_usd"` // since the session began
	} `json:"session"`
}

func usageRequest() map[string]any {
	return map[string]any{"subtype": "get_usage", "skip_behaviors": true}
}

// openBudget notes what the session had cost before a query.
func (c *conversation) openBudget(ctx context.Context, p *child.Process, q *query) error {
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
	q.costBefore = reply.Session.TotalCostUSD
	c.mu.Unlock()
	return nil
}

// checkBudget stops the running query if it has cost too much. It runs on the
// reader's goroutine, after each message.
func (c *conversation) checkBudget() {
	limit := c.profile.BudgetUSD
	if limit == 0 {
		return
	}
	c.requestLater(usageRequest(), func(raw json.RawMessage) {
		var reply usageReply
		if json.Unmarshal(raw, &reply) != nil {
			return
		}
		c.mu.Lock()
		q, p := c.query, c.process
		stop := q != nil && q.started && !q.finished && !q.overBudget && reply.Session.TotalCostUSD-q.costBefore >= limit
		if stop {
			q.overBudget = true
		}
		c.mu.Unlock()
		if !stop {
			return
		}
		interrupt(p)
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("the query is stopped: it has cost $%.4f, and its budget is $%.4f",
				reply.Session.TotalCostUSD-q.costBefore, limit),
		})
	})
}
