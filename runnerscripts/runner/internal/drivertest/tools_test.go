package drivertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/session"
)

// written is what the scripted model writes into a file.
const written = "hello from the scripted model\n"

// calls returns the tool calls of this case.
func (r *rig) calls() (list []*runnerscripts.ToolCall) {
	r.Helper()
	for _, b := range agenttest.Fold(r, r.Events()).Blocks {
		if b.Tool != nil {
			list = append(list, b.Tool)
		}
	}
	return list
}

// oneCall runs a query that calls one tool, allows the tool, and returns the call.
func (r *rig) oneCall(c agent.Conversation, prompt string) *runnerscripts.ToolCall {
	r.Helper()
	if e, _ := r.unasked(c, prompt); e.err != nil || e.done.StopReason != runnerscripts.StopEndTurn {
		r.Fatalf("%s: ended with %q, %v", prompt, e.done.StopReason, e.err)
	}
	calls := r.calls()
	if len(calls) != 1 {
		r.Fatalf("%s: the calls are %s", prompt, agenttest.Show(r, calls))
	}
	return calls[0]
}

func writesAFile(r *rig) {
	call := r.oneCall(r.talk(), "please write-file `written.txt`")
	if data, err := os.ReadFile(r.WorkspaceFile("written.txt")); err != nil || string(data) != written {
		r.Errorf("the file: %q, %v", data, err)
	}
	if call.Kind != runnerscripts.ToolEdit || call.Status != runnerscripts.ToolCompleted || !strings.Contains(call.Title, "written.txt") {
		r.Errorf("the call: %s", agenttest.Show(r, call))
	}
	if len(call.Locations) == 0 || call.Locations[0].Path != r.WorkspaceFile("written.txt") {
		r.Errorf("locations: %+v", call.Locations)
	}
	if diff := diffOf(call); !r.terse && (diff == nil || diff.NewText != written || diff.OldText != nil && *diff.OldText != "") {
		r.Errorf("content: %s", agenttest.Show(r, call.Content))
	}
	r.SameAsTranscript()
}

func editsAFile(r *rig) {
	agenttest.WriteFile(r, r.WorkspaceFile("edited.txt"), "first\nold\nlast\n")
	call := r.oneCall(r.talk(), "edit-file `edited.txt`")
	if data, err := os.ReadFile(r.WorkspaceFile("edited.txt")); err != nil || string(data) != "first\nnew\nlast\n" {
		r.Errorf("the file: %q, %v", data, err)
	}
	diff := diffOf(call)
	if diff == nil || diff.OldText == nil || !strings.Contains(*diff.OldText, "old") || !strings.Contains(diff.NewText, "new") || strings.Contains(diff.NewText, "old") {
		r.Errorf("content: %s", agenttest.Show(r, call.Content))
	}
	r.SameAsTranscript()
}

// diffOf returns the diff in a call; nil if there is none.
func diffOf(call *runnerscripts.ToolCall) *runnerscripts.ToolCallContent {
	i := slices.IndexFunc(call.Content, func(c runnerscripts.ToolCallContent) bool { return c.Type == "diff" })
	if i < 0 {
		return nil
	}
	return &call.Content[i]
}

func failingCommand(r *rig) {
	call := r.oneCall(r.talk(), "run-command `printf 'its out'; exit 3`")
	if call.Title != "printf 'its out'; exit 3" || call.Kind != runnerscripts.ToolExecute || call.Status != runnerscripts.ToolFailed && !r.terse {
		r.Errorf("the call: %s", agenttest.Show(r, call))
	}
	if len(call.Content) != 1 || !strings.Contains(call.Content[0].Content.Text, "its out") {
		r.Errorf("content: %s", agenttest.Show(r, call.Content))
	}
	if call.ExitCode != 3 && !r.terse {
		r.Errorf("exit code: %d in %s", call.ExitCode, agenttest.Show(r, call))
	}
	r.SameAsTranscript()
}

func twoTools(r *rig) {
	if e, _ := r.unasked(r.talk(), "two-tools"); e.err != nil {
		r.Fatal(e.err)
	}
	calls := r.calls()
	if len(calls) != 2 || calls[0].Status != runnerscripts.ToolCompleted || calls[1].Status != runnerscripts.ToolCompleted {
		r.Errorf("the calls are %s", agenttest.Show(r, calls))
	}
	r.SameAsTranscript()
}

// subagent checks a subagent's part of the conversation. Its own tools are allowed.
func subagent(r *rig) {
	if e, _ := r.unasked(r.talk(), "subagent"); e.err != nil || e.done.StopReason != runnerscripts.StopEndTurn {
		r.Fatalf("ended with %q, %v", e.done.StopReason, e.err)
	}
	subs := agenttest.Fold(r, r.Events()).Subagents
	if len(subs) != 1 {
		r.Fatalf("subagents: %s", agenttest.Show(r, subs))
	}
	sub := subs[0]
	if sub.Prompt != "Please do the subwork `echo subagent`" || sub.AgentID == "" || sub.Status != session.SubagentCompleted || sub.Output != "The subagent has done its work." {
		r.Errorf("the subagent: %s", agenttest.Show(r, sub))
	}
	if !slices.ContainsFunc(sub.Blocks, func(b *session.Block) bool { return b.Tool != nil && b.Tool.Title == "echo subagent" }) {
		r.Errorf("its conversation: %s", agenttest.Show(r, sub.Blocks))
	}
	tr := r.SameAsTranscript()
	if !slices.ContainsFunc(tr.Subagents, func(s runnerscripts.SubagentTranscript) bool { return s.ID == sub.AgentID }) {
		r.Errorf("the transcript lacks the subagent %q", sub.AgentID)
	}
}

func subagentAsks(r *rig) {
	c := r.talk()
	query := r.begin(c, "subagent `touch by-subagent`")
	req := r.asked(0)
	subs := agenttest.Fold(r, r.Events()).Subagents
	if len(subs) != 1 || req.ToolCall.Title != "touch by-subagent" {
		r.Fatalf("subagents: %s, request: %s", agenttest.Show(r, subs), agenttest.Show(r, req))
	}
	if err := c.Respond(r.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || !r.Exists("by-subagent") {
		r.Errorf("error %v; the command ran: %v", e.err, r.Exists("by-subagent"))
	}
	for _, e := range r.Events() {
		if (e.Type == runnerscripts.TypePermissionRequest || e.Type == runnerscripts.TypePermissionResolved) && e.ConversationID != subs[0].ToolCallID {
			r.Errorf("%s in %q", e.Type, e.ConversationID)
		}
	}
	r.SameAsTranscript()
}

// anotherInput answers with another input for the tool, which an agent may be unable to take.
func anotherInput(r *rig) {
	c := r.talk()
	const input = `{"command":"touch another"}`
	query := r.begin(c, "run-command `touch first`")
	req := r.asked(0)
	ran, not := "another", "first"
	err := c.Respond(r.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: []byte(input)})
	if !r.rewrites {
		if !agenttest.HasCode(err, runnerscripts.FailUnsupported) || !strings.Contains(err.Error(), "updated_input") {
			r.Errorf("another input: %v", err)
		}
		ran, not = not, ran // the request is still pending
		err = c.Respond(r.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	}
	if err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || !r.Exists(ran) || r.Exists(not) {
		r.Errorf("error %v; %s ran: %v, %s ran: %v", e.err, ran, r.Exists(ran), not, r.Exists(not))
	}
	calls := r.calls()
	if len(calls) != 1 || calls[0].Title != "touch "+ran || r.rewrites && string(calls[0].RawInput) != input {
		r.Errorf("the calls are %s", agenttest.Show(r, calls))
	}
}

func decidedByOption(r *rig) {
	c := r.talk()
	query := r.begin(c, "run-command `touch chosen`")
	req := r.asked(0)
	i := slices.IndexFunc(req.Options, func(o runnerscripts.PermissionOption) bool { return o.Kind == runnerscripts.AllowOnce })
	if i < 0 {
		r.Fatalf("the options are %+v", req.Options)
	}
	if err := c.Respond(r.Context(), req.ID, runnerscripts.PermissionDecision{OptionID: req.Options[i].OptionID}); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || !r.Exists("chosen") {
		r.Errorf("error %v; the command ran: %v", e.err, r.Exists("chosen"))
	}
}

func rejectedAndInterrupted(r *rig) {
	c := r.talk()
	query := r.begin(c, "run-command `touch interrupted`")
	req := r.asked(0)
	if err := c.Respond(r.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Interrupt: true}); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled || r.Exists("interrupted") {
		r.Errorf("ended with %q, %v; the command ran: %v", e.done.StopReason, e.err, r.Exists("interrupted"))
	}
	r.answered(runnerscripts.RejectOnce, runnerscripts.ToolFailed)
	r.prompt(c, "plain-text")
}

func interruptedAnswer(r *rig) {
	c := r.talk()
	for _, answer := range []struct {
		scenario string
		typ      runnerscripts.EventType
	}{{"slow-stream", runnerscripts.TypeAgentMessage}, {"slow-think", runnerscripts.TypeAgentThought}} {
		scenario, typ := answer.scenario, answer.typ
		if scenario == "slow-think" && !r.supports(runnerscripts.FeatureThinking) {
			continue
		}
		before := len(r.Events())
		query := r.begin(c, scenario)
		r.held()
		r.during("the beginning of the answer", func() bool { return slices.ContainsFunc(r.Events()[before:], agenttest.OfType(typ)) })
		if err := c.Interrupt(r.Context()); err != nil {
			r.Fatal(err)
		}
		if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
			r.Fatalf("%s: ended with %q, %v", scenario, e.done.StopReason, e.err)
		}
		for range 2 { // a late end of the query must not end the next one
			if done := r.prompt(c, "plain-text"); done.StopReason != runnerscripts.StopEndTurn {
				r.Errorf("%s: the next prompt ended with %q", scenario, done.StopReason)
			}
		}
	}
	if text := agenttest.Said(r, r.Events()); strings.Contains(text, "six") {
		r.Errorf("the agent said %q", text)
	}
	if err := c.Interrupt(r.Context()); err != nil {
		r.Errorf("without a query: %v", err)
	}
	if !r.forgets {
		r.SameAsTranscript()
	}
}

func interruptedCommand(r *rig) {
	c := r.talk()
	query := r.begin(c, "run-command `exec sh -c 'echo $$ > started; until test -e released; do sleep 0.1; done'`")
	if err := c.Respond(r.Context(), r.asked(0).ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
		r.Fatal(err)
	}
	pid := r.line("started")
	if err := c.Interrupt(r.Context()); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
	}
	agenttest.WaitForExit(r, pid)
	r.prompt(c, "plain-text")
}

// line waits for a line in a file of the workspace.
func (r *rig) line(name string) (text string) {
	r.Helper()
	r.during("there is a line in "+name, func() bool {
		data, err := os.ReadFile(r.WorkspaceFile(name))
		text = strings.TrimSuffix(string(data), "\n")
		return err == nil && len(text) < len(data)
	})
	return text
}

func failingAPI(r *rig) {
	c := r.talk()
	r.prompt(c, "before the failures plain-text")
	for _, status := range []int{http.StatusBadRequest, http.StatusUnauthorized} {
		e := r.await(r.begin(c, fmt.Sprintf("http-%d", status)))
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](e.err)
		switch {
		case !ok:
			r.Fatalf("%d: error %v", status, e.err)
		case r.hidesAPI && failure.Code == runnerscripts.FailQuery:
		case failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != status:
			r.Errorf("%d: %+v", status, failure)
		}
		if status == http.StatusBadRequest && !strings.Contains(failure.Message, "scripted failure") {
			r.Errorf("the message is %q", failure.Message)
		}
	}
	r.prompt(c, "remember")
	if text := agenttest.Said(r, r.Events()); !strings.Contains(text, "before the failures plain-text") {
		r.Errorf("the agent said %q", text)
	}
	r.SameAsTranscript()
}

// toolMutants returns mutants whose tool calls and ends of queries are wrong.
func toolMutants() []mutant {
	const (
		chosen      = "a decision may name an option"
		interrupted = "a rejection may interrupt the query"
		failure     = "a failure of the API fails the query and the next prompt goes on"
		midway      = "an interrupt in the middle of an answer leaves the session usable"
	)
	return []mutant{
		{name: "the limit of turns is another one", rule: "a limit of turns ends the query", says: "11 requests with a limit of 8", subject: claudeSubject, broken: broken{profile: func(s *runnerscripts.Session, _ *runnerscripts.Profile) { s.Agent.MaxTurns += 3 }}},
		{name: "a rejection is resolved as an allowance", rule: "a rejected tool does not run", says: "Kind:allow_once Reason:answered", broken: broken{sink: func(_ runnerscripts.EventType, payload any) (any, bool) {
			if p, ok := payload.(runnerscripts.PermissionResolved); ok {
				p.Kind = runnerscripts.AllowOnce
				payload = p
			}
			return payload, true
		}}},
		{name: "another input is ignored", rule: "another input of a tool runs or is refused", says: "another ran: false", broken: broken{talk: changedDecision(func(d *runnerscripts.PermissionDecision) { d.UpdatedInput = nil })}, subject: claudeSubject},
		{name: "subagents talk in the main conversation", rule: "a subagent has a conversation of its own", says: "its conversation: null", broken: broken{oneConversation: true}},
		{name: "subagents ask in the main conversation", rule: "a subagent asks for permission in its conversation", says: `request_permission in "main"`, broken: broken{askInMain: true}},
		{name: "options are not known", rule: chosen, says: "the command ran: false", broken: broken{talk: changedDecision(func(d *runnerscripts.PermissionDecision) {
			if d.OptionID != "" {
				*d = runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}
			}
		})}},
		{name: "a rejection only rejects", rule: interrupted, says: `ended with "end_turn"`, broken: broken{talk: changedDecision(func(d *runnerscripts.PermissionDecision) { d.Interrupt = false })}},
		{name: "a new file has no diff", rule: "a file that is written is a diff", says: "content: null", broken: broken{sink: changedCall(func(c *runnerscripts.ToolCall) { c.Content = nil })}},
		{name: "a new file is nowhere", rule: "a file that is written is a diff", says: "locations:", broken: broken{sink: changedCall(func(c *runnerscripts.ToolCall) { c.Locations = nil })}},
		{name: "a diff lacks the text before", rule: "a file that is changed is a diff", says: "last\\n\",\n  \"path\"", broken: broken{sink: changedCall(func(c *runnerscripts.ToolCall) {
			c.Content = slices.Clone(c.Content)
			for i := range c.Content {
				c.Content[i].OldText = nil
			}
		})}},
		{name: "a failed command is completed", rule: "a failed command shows its output", says: "the call:", broken: broken{sink: changedCall(func(c *runnerscripts.ToolCall) {
			if c.Status == runnerscripts.ToolFailed {
				c.Status = runnerscripts.ToolCompleted
			}
		})}},
		{name: "all calls have one ID", rule: "two tools of one message are two calls", says: "the calls are", broken: broken{sink: changedCall(func(c *runnerscripts.ToolCall) { c.ToolCallID = "call" })}},
		{name: "a failure of the API has no status", rule: failure, says: "400: ", broken: broken{talk: failed(func(err error) error {
			if f, ok := errors.AsType[*runnerscripts.ScriptFailure](err); ok {
				f.HTTPStatus = 0
			}
			return err
		})}},
		{name: "a failure of the API is the end of the turn", rule: failure, says: "400: error <nil>", broken: broken{talk: failed(func(error) error { return nil })}},
		{name: "an interrupt of a command is lost", rule: "an interrupt ends a running command", says: `ended with "end_turn"`, broken: broken{talk: func(c brokenConversation) brokenConversation {
			c.interrupt = func(context.Context) error { // the command goes on
				return os.WriteFile(c.rig.WorkspaceFile("released"), nil, 0o600)
			}
			return c
		}}},
		{name: "an interrupt in the middle is lost", rule: midway, says: `ended with "end_turn"`, broken: broken{talk: lostInterrupt}},
		{name: "an interrupt without a query is an error", rule: midway, says: "without a query: no query", broken: broken{talk: func(c brokenConversation) brokenConversation {
			running := &atomic.Bool{}
			c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
				running.Store(true)
				defer running.Store(false)
				return c.Conversation.Prompt(ctx, "q", text)
			}
			c.interrupt = func(ctx context.Context) error {
				if !running.Load() {
					return errors.New("no query")
				}
				return c.Conversation.Interrupt(ctx)
			}
			return c
		}}},
	}
}
