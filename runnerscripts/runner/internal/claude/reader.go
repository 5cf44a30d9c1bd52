package claude

import (
	"bytes"
	"encoding/json"
	"net/http"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// handle handles a line of the program. It runs on the reader's goroutine, one line at a time.
// An unknown line is not an error.
func (c *conversation) handle(line []byte) {
	if !utf8.Valid(line) {
		// Parts of the line are passed on unchanged.
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	if c.raw {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeRaw, agent.RawLine(line))
	}
	var h head
	if err := json.Unmarshal(line, &h); err != nil {
		agent.EmitUnreadable(c.out, programTitle, line, err)
		return
	}
	if err := c.dispatch(h, line); err != nil {
		agent.EmitUnreadable(c.out, programTitle, line, err)
	}
}

func (c *conversation) dispatch(h head, line []byte) error {
	switch h.Type {
	case "stream_event":
		return decode(line, c.piece)
	case "assistant", "user":
		return decode(line, c.message)
	case "system":
		return decode(line, func(l systemLine) { c.system(l, line) })
	case "result":
		return decode(line, c.turnEnded)
	case "command_lifecycle":
		return decode(line, c.lifecycle)
	case "control_response":
		return decode(line, c.replied)
	case "control_request":
		return decode(line, c.asked)
	case "control_cancel_request":
		return decode(line, func(l controlLine) {
			c.permissions.Withdraw(func(id string, _ question) bool { return id == l.RequestID })
		})
	}
	return nil // an unknown line, from a newer version
}

func decode[T any](line []byte, handle func(T)) error {
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		return err
	}
	handle(v)
	return nil
}

// piece handles a piece of a message.
func (c *conversation) piece(l streamLine) {
	c.translate.stream(l)
	if l.Event.Type == "message_stop" {
		c.checkBudget()
	}
}

// message handles a message, or the program's text in place of one.
func (c *conversation) message(l messageLine) {
	if l.IsAPIError {
		_ = json.Unmarshal(l.Error, &c.apiError) // anything but a text is ignored
	}
	c.translate.liveMessage(l)
	if l.Type == "user" {
		c.checkBudget() // also after the messages of subagents, which do not come in pieces
	}
}

func (c *conversation) system(l systemLine, line []byte) {
	switch l.Subtype {
	case "init":
		c.initialize(l)
	case "status":
		c.modeIs(l.PermissionMode)
	case "session_state_changed":
		c.stateIs(l.State)
	case "api_retry":
		c.translate.retry(l, bytes.Clone(line))
		c.checkRefusal(l)
	case "task_started", "task_notification":
		c.translate.task(l)
	}
}

// checkRefusal stops a query whose key the model's API has refused twice. The program would
// retry for minutes. After the first refusal it may replace the key.
func (c *conversation) checkRefusal(l systemLine) {
	if l.ErrorStatus != http.StatusUnauthorized && l.ErrorStatus != http.StatusForbidden || l.Attempt < 2 {
		return
	}
	c.mu.Lock()
	q, p := c.query, c.process
	stop := q != nil && q.started && !q.finished && q.refused == 0
	if stop {
		q.refused = l.ErrorStatus
	}
	c.mu.Unlock()
	if stop {
		interrupt(p)
	}
}

// initialize handles the line that begins each turn.
func (c *conversation) initialize(l systemLine) {
	c.queryStarted()
	c.extrasAt(l)
	if c.initialized {
		c.modeIs(l.PermissionMode)
		return
	}
	c.initialized = true
	c.mu.Lock()
	c.mode = l.PermissionMode
	c.mu.Unlock()
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionInitialized, runnerscripts.SessionInitialized{
		Agent: programName, AgentVersion: l.Version, Model: l.Model, Mode: l.PermissionMode,
		Tools: l.Tools, Resumed: c.resumed,
	})
}

// queryStarted sends an interrupt that came too early.
func (c *conversation) queryStarted() {
	c.mu.Lock()
	q, p := c.query, c.process
	starts := q != nil && !q.waits && !q.started
	early := starts && q.interrupt
	if starts {
		q.started = true
	}
	c.mu.Unlock()
	if early {
		interrupt(p)
	}
}

// stateIs handles the program's state; "idle" ends the query.
func (c *conversation) stateIs(state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hasStates, c.state = true, state
	c.finishQueryLocked()
}

// lifecycle handles the state of the query's message.
func (c *conversation) lifecycle(l lifecycleLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.query
	if q == nil || q.uuid != l.CommandUUID {
		return
	}
	switch l.State {
	case "completed", "cancelled", "discarded":
		q.answered = true
		c.finishQueryLocked()
	}
}

// turnEnded handles the result of a turn; a query may have several.
func (c *conversation) turnEnded(r resultLine) {
	cost := c.meter.turn(r)
	r.apiError, c.apiError = c.apiError, ""
	c.askServers() // a server may have failed meanwhile
	c.translate.takeBack(runnerscripts.MainConversation)
	for _, m := range r.ModelUsage {
		if m.ContextWindow > c.translate.window {
			c.translate.window = m.ContextWindow
			c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUsageUpdate,
				runnerscripts.UsageUpdate{Used: c.translate.used, Size: m.ContextWindow})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns++
	q := c.query
	if q == nil || q.waits || q.finished {
		c.unasked.usage = c.unasked.usage.Add(cost)
		c.unasked.overBudget = false // stop the next one, too
		return
	}
	q.usage = q.usage.Add(cost)
	q.result = &r
	c.finishQueryLocked()
}

// finishQueryLocked ends the query if the program is done with it: it is idle, or has answered and
// its version reports no states. The caller holds c.mu.
func (c *conversation) finishQueryLocked() {
	q := c.query
	if q == nil || q.finished {
		return
	}
	idle := c.state == stateIdle || !c.hasStates
	if idle && (q.answered || q.result != nil) {
		q.finished = true
		close(q.done)
	}
}

// asked handles a request of the program.
func (c *conversation) asked(l controlLine) {
	var r canUseTool
	if err := json.Unmarshal(l.Request, &r); err == nil && r.Subtype == "can_use_tool" {
		c.ask(l.RequestID, r)
		return
	}
	c.mu.Lock()
	p := c.process
	c.mu.Unlock()
	// Reply, or the program would wait forever. If it has ended, the error does not matter.
	_ = p.Send(controlLine{Type: "control_response", Response: &controlResponse{
		Subtype: "error", RequestID: l.RequestID, Error: "this client answers can_use_tool only, not " + r.Subtype,
	}})
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
		Level: "warn", Message: "Claude Code asked for something that is not supported: " + r.Subtype,
		Data: bytes.Clone(l.Request),
	})
}
