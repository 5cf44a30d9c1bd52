package main

import (
	"context"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/queries"
)

// inWords asks for output of a schema that follows it.
const inWords = "\n\nEnd with an answer that is nothing but JSON, without other words: one value that matches this JSON schema.\n"

// prompt gives a prompt to the agent. A query with a schema has a turn more each time that the host asks again.
func (c *conversation) prompt(ctx context.Context, p queries.Prompt) (done runnerscripts.QueryCompleted, err error) {
	bound := c.binder != nil && c.binder.BindOutput(p.OutputSchema)
	if len(p.OutputSchema) == 0 {
		return c.agent.Prompt(ctx, p.ID, p.Text, p.Attachments...)
	}
	for text := p.Text; ; {
		if !bound {
			text += inWords + string(p.OutputSchema)
		}
		before := done
		done, err = c.agent.Prompt(ctx, p.ID, text, p.Attachments...)
		done.Usage, done.DurationMS = before.Usage.Add(done.Usage), before.DurationMS+done.DurationMS
		if err != nil || done.StopReason != runnerscripts.StopEndTurn {
			return done, err
		}
		c.report(ctx, func(q *queries.Queue) []queries.Action { return q.Offer(done.ResultData) })
		next, cancelled, err := c.verdict(ctx)
		if cancelled {
			done.StopReason = runnerscripts.StopCancelled
		}
		if next == "" || err != nil {
			return done, err
		}
		text, p.Attachments = next, nil
		bound = false // the agent may have ignored the schema
	}
}

// verdict waits for the host's answer to an offered output.
func (c *conversation) verdict(ctx context.Context) (next string, cancelled bool, err error) {
	for ctx.Err() == nil {
		c.mu.Lock()
		next, cancelled, ok := c.queue.Verdict()
		c.mu.Unlock()
		if ok {
			return next, cancelled, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
		}
	}
	return "", false, context.Cause(ctx)
}
