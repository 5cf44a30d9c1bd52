package opencode

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// question is a pending permission request, or a pending question to the user.
type question struct {
	id      string
	conv    string
	kind    string   // the kind of action, for a permission request
	targets []string // the targets of the action
	always  []string // what an answer "always" would allow
	callID  string   // of its tool call; empty if there is none
	options []runnerscripts.PermissionOption
	call    runnerscripts.ToolCall // as far as it is known without its input
	isAsk   bool                   // it asks for an answer, not for permission
	words   int                    // number of requested answers
}

// The answers. The server remembers "always" until it ends.
const (
	replyOnce   = "once"
	replyAlways = "always"
	replyReject = "reject"
)

// newQuestion returns the question for a permission request, with its possible answers.
func newQuestion(conv string, r permissionAsked) question {
	q := question{id: r.ID, conv: conv, kind: r.Permission, targets: r.Patterns, always: r.Always}
	title := strings.TrimSpace(r.Permission + " " + strings.Join(r.Patterns, " "))
	if r.Metadata.Command != "" {
		title = r.Metadata.Command
	}
	q.call = runnerscripts.ToolCall{ToolCallID: r.ID, Title: title, Kind: toolKind(r.Permission)}
	if r.Permission == outside && r.Metadata.FilePath != "" {
		q.call.Kind = runnerscripts.ToolEdit // a guess: the request does not name the tool
	}
	q.call.Locations = r.locations()
	if r.Tool != nil {
		q.callID = r.Tool.CallID
	}
	q.options = append(q.options, runnerscripts.PermissionOption{OptionID: replyOnce, Name: "Allow", Kind: runnerscripts.AllowOnce})
	if len(r.Always) > 0 {
		q.options = append(q.options, runnerscripts.PermissionOption{
			OptionID: replyAlways, Kind: runnerscripts.AllowAlways,
			Name: "Allow for this session: " + r.Permission + " " + strings.Join(r.Always, ", "),
		})
	}
	q.options = append(q.options, runnerscripts.PermissionOption{OptionID: replyReject, Name: "Reject", Kind: runnerscripts.RejectOnce})
	return q
}

// locations returns the files of a request.
func (r permissionAsked) locations() []runnerscripts.Location {
	var list []runnerscripts.Location
	for _, f := range r.Metadata.Files { // the files of a patch
		list = append(list, runnerscripts.Location{Path: f.FilePath})
		if f.MovePath != "" {
			list = append(list, runnerscripts.Location{Path: f.MovePath})
		}
	}
	if file := r.Metadata.FilePath; file != "" && len(list) == 0 {
		list = append(list, runnerscripts.Location{Path: file})
	}
	return list
}

// withFiles returns a call with the files of its request too. The input of the call, which the model writes, may name others.
func withFiles(call runnerscripts.ToolCall, files []runnerscripts.Location) runnerscripts.ToolCall {
	for _, f := range files {
		if !slices.ContainsFunc(call.Locations, func(l runnerscripts.Location) bool { return l.Path == f.Path }) {
			call.Locations = append(call.Locations, f)
		}
	}
	return call
}

// newAsk returns the question that the agent asks the user. The updated input of the decision holds
// the "answers": a list of labels for each question. Without them the program tells the model that
// there was no answer.
func newAsk(conv string, r questionAsked) question {
	raw := rawJSON(map[string][]json.RawMessage{"questions": r.Questions})
	q := question{id: r.ID, conv: conv, isAsk: true, words: len(r.Questions)}
	q.call = runnerscripts.ToolCall{
		ToolCallID: r.ID, Name: "question", Kind: runnerscripts.ToolOther, RawInput: raw,
		Title: parseInput(raw).title("question"),
	}
	if r.Tool != nil {
		q.callID = r.Tool.CallID
	}
	q.options = []runnerscripts.PermissionOption{
		{OptionID: replyOnce, Name: "Answer", Kind: runnerscripts.AllowOnce},
		{OptionID: replyReject, Name: "Do not answer", Kind: runnerscripts.RejectOnce},
	}
	return q
}

// allowedBy reports whether a mode allows a request without asking the user.
func allowedBy(mode, permission string) bool {
	return mode == modeAuto || mode == modeAcceptEdits && permission == "edit"
}

// ask handles a permission request. It runs on the reader's goroutine.
func (c *conversation) ask(ctx context.Context, r permissionAsked) {
	c.wait(ctx, newQuestion(c.translate.conversationOf(r.SessionID), r))
}

// wait stores a question until the input of its tool call is known. The question may have overtaken
// its tool call.
func (c *conversation) wait(ctx context.Context, q question) {
	c.mu.Lock()
	c.early[q.id] = q
	c.mu.Unlock()
	c.passOn(ctx, false)
}

// passOn handles the stored questions whose tool calls are known, or all of them. It asks the user
// unless the driver answers itself.
func (c *conversation) passOn(ctx context.Context, all bool) {
	c.mu.Lock()
	var ready []question
	for id, q := range c.early {
		p, known := c.translate.calls[q.callID]
		known = known && p.State.Status == toolRunning
		if !known && !all && q.callID != "" {
			continue
		}
		if known {
			q.conv = c.translate.conversationOf(p.SessionID)
			q.call = withFiles(c.translate.toolCall(p), q.call.Locations)
		}
		c.early[id] = q
		ready = append(ready, q)
	}
	c.mu.Unlock()
	slices.SortFunc(ready, func(a, b question) int { return strings.Compare(a.id, b.id) })
	for _, q := range ready {
		q.call.Status = runnerscripts.ToolPending
		if !c.answered(ctx, q) {
			r := runnerscripts.PermissionRequest{ID: q.id, ToolCall: q.call, Options: q.options}
			c.permissions.Request(q.conv, r, q, func() bool { return c.takeEarly(q.id) })
		}
	}
}

// answered answers a request without the user if the workspace guard, the mode or the rules decide.
// It reports whether it did.
func (c *conversation) answered(ctx context.Context, q question) bool {
	c.mu.Lock()
	allowed := allowedBy(c.mode, q.kind) || slices.Contains(fileTools(), q.kind) && c.rules.allow(q.kind, q.targets)
	c.mu.Unlock()
	if slices.Contains(c.session.Asks, runnerscripts.AsksRead) && q.kind != "edit" && slices.Contains(fileTools(), q.kind) {
		allowed = false // the host decides
	}
	var body replyBody
	reason, refused := c.guard.Refuses(q.call)
	switch {
	case q.isAsk:
		return false
	case refused:
		agent.EmitRefused(c.out, q.conv, q.call, reason)
		body = replyBody{Reply: replyReject, Message: reason}
	case allowed:
		body = replyBody{Reply: replyOnce}
	default:
		return false
	}
	c.takeEarly(q.id)
	c.background(ctx, func(ctx context.Context, s *server) error {
		return s.post(ctx, q.path(), body, nil)
	})
	return true
}

// path returns the API path for the answer.
func (q question) path() string { return "/permission/" + q.id + "/reply" }

// takeEarly removes a question that was not passed on; it returns false if the question was
// withdrawn.
func (c *conversation) takeEarly(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.early[id]
	delete(c.early, id)
	return ok
}

// withdraw withdraws a question.
func (c *conversation) withdraw(id string) {
	c.takeEarly(id)
	c.permissions.Withdraw(func(other string, _ question) bool { return other == id })
}

// withdrawAll withdraws the questions of a query that has ended.
func (c *conversation) withdrawAll() {
	c.mu.Lock()
	clear(c.early)
	c.mu.Unlock()
	c.permissions.WithdrawAll()
}

// Respond answers a permission request.
func (c *conversation) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	var path string
	var body any
	q, o, err := c.permissions.Answer(id, func(q question) (o runnerscripts.PermissionOption, err error) {
		o, path, body, err = q.answer(d)
		return o, err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	if o.Kind == runnerscripts.AllowAlways && slices.Contains(fileTools(), q.kind) && !c.session.Agent.AllowOutside {
		// After "always" the program would not ask any more, so the guard could not refuse.
		for _, pattern := range q.always {
			c.rules = c.rules.with(q.kind, pattern, actionAllow)
		}
		body = replyBody{Reply: replyOnce}
	}
	var stopped *query
	if d.Interrupt && !o.Kind.Allows() {
		stopped = c.query
	}
	if stopped != nil {
		stopped.rejected = true // the rejection may end the query before the interrupt arrives
	}
	s := c.server
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err = s.post(ctx, path, body, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if stopped != nil {
			stopped.rejected = false
		}
		if hasStatus(err, http.StatusNotFound) {
			return agent.NotWaiting(id)
		}
		return err
	}
	c.interrupt(ctx, stopped)
	return nil
}

// answerTime limits a request that answers a question or aborts a query. It is far above what the
// server needs.
const answerTime = 2 * time.Minute

// answer returns the option, and the path and body of the request that sends it.
func (q question) answer(d runnerscripts.PermissionDecision) (o runnerscripts.PermissionOption, path string, body any, err error) {
	if o, err = agent.Choose(q.options, d); err != nil {
		return o, "", nil, err
	}
	if q.isAsk {
		path, body, err = q.reply(o, d)
		return o, path, body, err
	}
	if len(d.UpdatedInput) > 0 {
		return o, "", nil, agent.Unsupported("leave updated_input out, or reject with a message that says what to do instead: " +
			"OpenCode cannot change the input of a tool")
	}
	reply := replyBody{Reply: o.OptionID}
	if !o.Kind.Allows() && !d.Interrupt {
		// A rejection without a message would end the query.
		reply.Message = d.Message
		if reply.Message == "" {
			reply.Message = "The user did not allow this."
		}
	}
	return o, q.path(), reply, nil
}

// reply returns the path and body of the answer to a question of the agent.
func (q question) reply(o runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) (path string, body any, err error) {
	if !o.Kind.Allows() {
		return "/question/" + q.id + "/reject", nil, nil
	}
	var given struct {
		Answers [][]string `json:"answers"`
	}
	if len(d.UpdatedInput) == 0 {
		for range q.words {
			given.Answers = append(given.Answers, []string{})
		}
	} else if err := json.Unmarshal(d.UpdatedInput, &given); err != nil || len(given.Answers) == 0 {
		return "", nil, agent.Invalid(
			`updated_input is %q; answer with {"answers":[["label"]]}, a list of the chosen labels for each question`, d.UpdatedInput)
	}
	return "/question/" + q.id + "/reply", given, nil
}
