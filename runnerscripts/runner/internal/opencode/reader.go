package opencode

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// handle handles an event of the server. It runs on the goroutine that reads the events, one at a
// time. An unknown event is not an error.
func (c *conversation) handle(ctx context.Context, line []byte) {
	if !utf8.Valid(line) {
		// Parts of the event are passed on unchanged, so they must be valid UTF-8.
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	if c.raw {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeRaw, agent.RawLine(line))
	}
	var e event
	err := json.Unmarshal(line, &e)
	if err == nil {
		err = c.dispatch(ctx, e)
	}
	if err != nil {
		agent.EmitUnreadable(c.out, "OpenCode", line, err)
	}
}

func (c *conversation) dispatch(ctx context.Context, e event) error {
	c.talking.Lock()
	defer c.talking.Unlock()
	switch e.Type {
	case "message.updated":
		return decode(e.Properties, func(u messageUpdated) { c.messageUpdated(ctx, u.Info) })
	case "message.part.updated":
		return decode(e.Properties, func(u partUpdated) { c.partUpdated(ctx, u, e) })
	case "message.part.delta":
		return decode(e.Properties, func(d partDelta) { c.partDelta(d, e) })
	case "message.part.removed":
		return decode(e.Properties, func(r partRemoved) { c.translate.remove(r.PartID) })
	case "session.status":
		return decode(e.Properties, func(s sessionStatus) { c.statusIs(ctx, s) })
	case "session.error":
		return decode(e.Properties, c.failed)
	case "permission.asked":
		return decode(e.Properties, func(r permissionAsked) { c.ask(ctx, r) })
	case "permission.replied", "question.replied", "question.rejected":
		return decode(e.Properties, func(r permissionReplied) { c.withdraw(r.RequestID) })
	case "question.asked":
		return decode(e.Properties, func(r questionAsked) { c.wait(ctx, newAsk(c.translate.conversationOf(r.SessionID), r)) })
	case "server.heartbeat":
		c.beat(ctx)
	case "tui.toast.show":
		return decode(e.Properties, c.toast)
	}
	return nil // an event of a newer version, or an irrelevant one
}

func decode[T any](raw json.RawMessage, handle func(T)) error {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	handle(v)
	return nil
}

// messageUpdated handles an update of a message. It stops a query that exceeds its limit of
// model requests.
func (c *conversation) messageUpdated(ctx context.Context, m messageInfo) {
	c.translate.infos[m.ID] = m
	c.mu.Lock()
	q := c.query
	if q != nil && m.SessionID == c.id && m.Role == roleUser && m.ID > q.id && q.accepted && !q.owns(m) {
		q.also = append(q.also, m.ID)
	}
	if q == nil || !q.owns(m) {
		c.mu.Unlock()
		return
	}
	q.accepted = true
	stop := false
	if m.Role == roleAssistant {
		most := c.session.Agent.MaxTurns
		stop = q.answer(m) && most > 0 && len(q.answers) > most && !q.limited
		q.limited = q.limited || stop
		q.settle()
	}
	if stop {
		c.abort(ctx)
	}
	c.mu.Unlock()
}

// partUpdated handles the current state of a part.
func (c *conversation) partUpdated(ctx context.Context, u partUpdated, e event) {
	if c.deferEvent(u.Part.SessionID, e) {
		return
	}
	c.translate.part(u.Part)
	c.replayDeferred(ctx)
	if u.Part.Type == partTool {
		c.passOn(ctx, false)
	}
}

// partDelta handles new text of a part.
func (c *conversation) partDelta(d partDelta, e event) {
	if !c.deferEvent(d.SessionID, e) {
		c.translate.delta(d)
	}
}

// maxDeferred limits the stored events of each session whose tool call is unknown; catchUp reports
// the rest.
const maxDeferred = 1000

// deferEvent stores an event of a session whose tool call is unknown, and reports whether it did: a
// subagent's events may overtake the tool call that started it.
func (c *conversation) deferEvent(sessionID string, e event) bool {
	if _, known := c.translate.conversations[sessionID]; known {
		return false
	}
	if len(c.deferred[sessionID]) < maxDeferred {
		c.deferred[sessionID] = append(c.deferred[sessionID], e)
	}
	return true
}

// replayDeferred handles the stored events of sessions whose tool call is known now.
func (c *conversation) replayDeferred(ctx context.Context) {
	for id, events := range c.deferred {
		if _, known := c.translate.conversations[id]; !known {
			continue
		}
		delete(c.deferred, id)
		for _, e := range events {
			switch e.Type {
			case "message.part.updated":
				_ = decode(e.Properties, func(u partUpdated) { c.partUpdated(ctx, u, e) }) // it was decoded before
			case "message.part.delta":
				_ = decode(e.Properties, func(d partDelta) { c.partDelta(d, e) })
			}
		}
	}
}

// statusIs handles the status of a session.
func (c *conversation) statusIs(ctx context.Context, s sessionStatus) {
	if s.Status.Type == "retry" {
		c.retried(ctx, s)
	}
	c.mu.Lock()
	q := c.query
	if q == nil || !q.accepted || s.SessionID != c.id {
		c.mu.Unlock()
		return
	}
	q.idle, q.beats = s.Status.Type == "idle" && (q.busy || q.problem != nil), 0
	interrupt := false
	if s.Status.Type != "idle" {
		interrupt = q.interrupt && !q.busy
		q.busy = true
	}
	q.settle()
	if interrupt {
		c.abort(ctx)
	}
	c.mu.Unlock()
}

// retried reports that the program retries a request to the model's API. It stops the query after
// too many retries, because the program itself retries forever.
func (c *conversation) retried(ctx context.Context, s sessionStatus) {
	c.out.Emit(c.translate.conversationOf(s.SessionID), runnerscripts.TypeLog, runnerscripts.Log{
		Level: "warn", Code: runnerscripts.FailAPI,
		Message: fmt.Sprintf("the model's API failed %d times in a row and is tried again: %s", s.Status.Attempt, s.Status.Message),
		Data:    rawJSON(s.Status),
	})
	if s.Status.Attempt <= c.retries {
		return
	}
	c.mu.Lock()
	q := c.query
	stop := q != nil && q.gaveUp == nil
	if stop {
		q.gaveUp = tooManyRetries(s.Status.Attempt, s.Status.Message)
	}
	if stop {
		c.abort(ctx)
	}
	c.mu.Unlock()
}

// failed handles an error of a session. The error may belong to no message.
func (c *conversation) failed(e sessionError) {
	if e.SessionID == "" && e.Error != nil {
		c.log("error", e.Error.Data.Message) // an error of a plugin, for example
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.query
	if q == nil || e.SessionID != c.id || e.Error == nil {
		return
	}
	q.problem = e.Error
	if !q.accepted {
		q.finish() // the program did not accept the prompt
	}
}

// toast reports a temporary notice of the program.
func (c *conversation) toast(t toast) {
	switch t.Variant {
	case "error", "warning":
		c.log(map[string]string{"error": "error", "warning": "warn"}[t.Variant], strings.TrimSpace(t.Title+": "+t.Message))
	}
}

// beat handles a heartbeat of the server. It passes on all stored questions, and ends a query that
// has been idle for two heartbeats.
func (c *conversation) beat(ctx context.Context) {
	c.passOn(ctx, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.query
	if q == nil || !q.idle {
		return
	}
	if q.beats++; q.beats > 1 {
		q.finish() // the last answer will never complete
	}
}
