package codex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// handle handles a line that the program printed. It runs on the reader's goroutine, one line at a
// time. An unknown line is not an error.
func (c *conversation) handle(p *jsonrpc.Peer, line []byte) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if !utf8.Valid(line) {
		// Parts of the line are passed on unchanged, so they must be valid UTF-8.
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	if c.raw {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeRaw, agent.RawLine(line))
	}
	var m jsonrpc.Message
	err := json.Unmarshal(line, &m)
	switch {
	case err != nil:
	case m.Method == "":
		p.Replied(m)
	case len(m.ID) > 0:
		err = c.handleRequest(p, m)
	default:
		c.queueOrDispatch(m, line)
	}
	if err != nil {
		agent.EmitUnreadable(c.out, programTitle, line, err)
	}
}

func decode[T any](params json.RawMessage, handle func(T)) error {
	var v T
	if err := json.Unmarshal(params, &v); err != nil {
		return err
	}
	handle(v)
	return nil
}

// queueOrDispatch handles a notification. It queues a notification of an unknown thread until the tool
// call that started the thread has ended.
func (c *conversation) queueOrDispatch(m jsonrpc.Message, line []byte) {
	if len(m.Params) == 0 {
		m.Params = json.RawMessage("{}")
	}
	var n note
	err := json.Unmarshal(m.Params, &n)
	if err == nil && n.ThreadID != "" && n.ThreadID != c.threadID() && !c.translate.knows(n.ThreadID) && len(c.queued) < maxQueued {
		c.queued = append(c.queued, bytes.Clone(line))
		return
	}
	if err == nil {
		err = c.dispatchNotification(m.Method, m.Params)
	}
	if err != nil {
		agent.EmitUnreadable(c.out, programTitle, line, err)
	}
	if c.translate.linked {
		c.translate.linked = false
		c.handleQueued()
	}
}

// maxQueued limits the number of queued notifications.
const maxQueued = 1000

// handleQueued handles the queued notifications whose thread is now known.
func (c *conversation) handleQueued() {
	waiting := c.queued
	c.queued = nil
	for _, line := range waiting {
		var m jsonrpc.Message
		_ = json.Unmarshal(line, &m) // the line was decoded before
		c.queueOrDispatch(m, line)
	}
}

// dispatchNotification handles a notification. It ignores unlisted methods: they are redundant, or from a
// newer version.
func (c *conversation) dispatchNotification(method string, params json.RawMessage) error {
	switch method {
	case "turn/started":
		return decode(params, c.turnStarted)
	case "turn/completed":
		return decode(params, c.turnCompleted)
	case "item/started":
		return decode(params, func(n itemNote) { c.retryInterrupt(n.note); c.translate.started(c.conv(n.note), n) })
	case "item/completed":
		return decode(params, c.itemCompleted)
	case "item/agentMessage/delta", "item/plan/delta":
		return decode(params, func(n deltaNote) {
			c.translate.delta(c.conv(n.note), runnerscripts.TypeAgentMessage, n.ItemID, n.Delta)
		})
	case "item/reasoning/summaryTextDelta":
		return decode(params, func(n deltaNote) {
			c.translate.delta(c.conv(n.note), runnerscripts.TypeAgentThought, summaryID(n.ItemID, n.SummaryIndex), n.Delta)
		})
	case "item/reasoning/textDelta":
		return decode(params, func(n deltaNote) {
			c.translate.delta(c.conv(n.note), runnerscripts.TypeAgentThought, thoughtID(n.ItemID, n.ContentIndex), n.Delta)
		})
	case "turn/plan/updated":
		return decode(params, func(n planNote) { c.translate.plan(time.Time{}, c.conv(n.note), n.Plan) })
	case "thread/tokenUsage/updated":
		return decode(params, c.used)
	case "error":
		return decode(params, func(n errorNote) { c.failing(n, params) })
	case "warning", "guardianWarning":
		return decode(params, func(n warningNote) { c.log("warn", n.Message, bytes.Clone(params)) })
	case "configWarning", "deprecationNotice":
		return decode(params, func(n warningNote) { c.log("info", n.Summary, bytes.Clone(params)) })
	case "mcpServer/startupStatus/updated":
		return decode(params, c.serverStarted)
	case "hook/completed":
		return decode(params, func(n hookNote) { c.hookRan(n, bytes.Clone(params)) })
	case "serverRequest/resolved":
		return decode(params, func(n resolvedNote) { c.withdraw(string(n.RequestID)) })
	}
	return nil
}

// conv returns the conversation of a notification.
func (c *conversation) conv(n note) string {
	if n.ThreadID == c.threadID() {
		return runnerscripts.MainConversation
	}
	return c.translate.conversationOf(n.ThreadID)
}

// retryInterrupt sends a pending interrupt to a turn that is now known to run.
func (c *conversation) retryInterrupt(n note) {
	if n.ThreadID == c.threadID() {
		c.sendInterrupt()
	}
}

// itemCompleted handles a finished item. If the item started subagents, itemCompleted marks them as
// working.
func (c *conversation) itemCompleted(n itemNote) {
	c.retryInterrupt(n.note)
	c.translate.completed(c.conv(n.note), n)
	c.signalQuiet()
	if n.Item.Type == itemCollab && n.Item.Tool == toolSpawn {
		c.mu.Lock()
		for _, thread := range n.Item.ReceiverThreadIDs {
			c.working[thread] = ""
		}
		c.mu.Unlock()
	}
}

func (c *conversation) turnStarted(n turnNote) {
	c.mu.Lock()
	switch q := c.query; {
	case n.ThreadID != c.thread:
		c.working[n.ThreadID] = n.Turn.ID
	case q != nil && q.end == nil:
		q.turn = n.Turn.ID
	}
	c.mu.Unlock()
	c.sendInterrupt()
}

func (c *conversation) turnCompleted(n turnNote) {
	c.mu.Lock()
	q := c.query
	own := n.ThreadID == c.thread && q != nil && q.end == nil && (q.turn == "" || q.turn == n.Turn.ID)
	asked := map[string]bool{} // items with a pending permission request
	c.mu.Unlock()
	for _, a := range c.permissions.Pending() {
		asked[a.params.ItemID] = true
	}
	c.translate.endTurnBut(time.Time{}, c.conv(n.note), func(call runnerscripts.ToolCall) bool {
		// Keep a running command open: endCommands will report its output. End a command that still
		// waits for permission: the program never reports its end.
		return own && n.Turn.Status == turnInterrupted && isCommand(call) && !asked[call.ToolCallID]
	})
	if n.Turn.Status != turnInterrupted {
		clear(c.translate.failed) // background commands still report their ends
	}
	c.translate.endSubagent(time.Time{}, n.ThreadID, n.Turn.Status == turnDone, n.Turn.DurationMS)
	c.mu.Lock()
	switch {
	case n.ThreadID != c.thread:
		delete(c.working, n.ThreadID)
	case own:
		q.end = &n.Turn
	}
	c.finishQueryLocked()
	c.mu.Unlock()
	c.signalQuiet()
}

// signalQuiet signals q.quiet if the turn of the query has ended and none of its commands is running.
func (c *conversation) signalQuiet() {
	if c.translate.runsCommand(runnerscripts.MainConversation) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.query; q != nil && q.end != nil {
		select {
		case q.quiet <- struct{}{}:
		default: // already signalled
		}
	}
}

// finishQueryLocked finishes the query if its turn has ended and no subagent is working. It does
// not wait for subagents if the query was cancelled or the turn did not complete. The caller holds
// c.mu.
func (c *conversation) finishQueryLocked() {
	q := c.query
	if q == nil || q.finished || q.end == nil {
		return
	}
	if len(c.working) == 0 || q.cancelled || q.end.Status != turnDone {
		q.finished = true
		q.abandoned = len(c.working) > 0
		close(q.done)
	}
}

// used handles a token count.
func (c *conversation) used(n usageNote) {
	cost := c.meter.add(n)
	c.mu.Lock()
	main := n.ThreadID == c.thread
	// Ignore a count for another turn of this thread: it is the cost before a resume.
	if q := c.query; q != nil && (!main || n.TurnID == q.turn) {
		q.usage = q.usage.Add(cost)
	}
	c.mu.Unlock()
	if main {
		c.translate.contextUse(time.Time{}, n.TokenUsage.Last.TotalTokens, n.TokenUsage.ModelContextWindow)
	}
}

// serverStarted reports an MCP server that did not start: the agent continues without its
// tools. Each subagent tries to start it again, but the failure is reported once.
func (c *conversation) serverStarted(n serverNote) {
	if n.Error == "" || c.broken[n.Name] {
		return
	}
	c.broken[n.Name] = true
	c.log("error", fmt.Sprintf("correct the MCP server %q in profile.mcp_servers or agent.config: it did not start: %s", n.Name, n.Error), nil)
}

// failing reports that the program retries a request to the model's API. The end of the turn
// reports the last failure.
func (c *conversation) failing(n errorNote, raw json.RawMessage) {
	if n.WillRetry {
		_, status := n.Error.kind()
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Code: runnerscripts.FailAPI, HTTPStatus: status,
			Message: "the model's API failed: " + n.Error.text(), Data: bytes.Clone(raw),
		})
	}
}
