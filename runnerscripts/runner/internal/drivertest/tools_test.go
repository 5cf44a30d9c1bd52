package drivertest

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
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
	if diff := diffOf(call); !r.plainCalls && (diff == nil || diff.NewText != written || diff.OldText != nil && *diff.OldText != "") {
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
	if call.Title != "printf 'its out'; exit 3" || call.Kind != runnerscripts.ToolExecute || call.Status != runnerscripts.ToolFailed && !r.plainCalls {
		r.Errorf("the call: %s", agenttest.Show(r, call))
	}
	if len(call.Content) != 1 || !strings.Contains(call.Content[0].Content.Text, "its out") {
		r.Errorf("content: %s", agenttest.Show(r, call.Content))
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
	if calls := r.calls(); len(calls) != 1 || calls[0].Status != runnerscripts.ToolFailed {
		r.Errorf("the calls are %s", agenttest.Show(r, calls))
	}
	if got := r.resolved(); len(got) != 1 || got[0].ID != req.ID || got[0].Reason != "answered" {
		r.Errorf("resolved: %+v", got)
	}
	r.prompt(c, "plain-text")
}

func interruptedAnswer(r *rig) {
	c := r.talk()
	for scenario, typ := range map[string]runnerscripts.EventType{
		"slow-stream": runnerscripts.TypeAgentMessage, "slow-think": runnerscripts.TypeAgentThought,
	} {
		if scenario == "slow-think" && !r.supports(runnerscripts.FeatureThinking) {
			continue
		}
		before := len(r.Events())
		query := r.begin(c, scenario)
		if err := r.API.WaitHeld(r.Context()); err != nil {
			r.Fatal(err)
		}
		n := 0
		r.wait(func(e runnerscripts.Event) bool {
			n++
			return n > before && e.Type == typ
		})
		if err := c.Interrupt(r.Context()); err != nil {
			r.Fatal(err)
		}
		if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
			r.Errorf("%s: ended with %q, %v", scenario, e.done.StopReason, e.err)
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

func failingAPI(r *rig) {
	c := r.talk()
	for text, status := range map[string]int{"http-400": http.StatusBadRequest, "http-401": http.StatusUnauthorized} {
		e := r.await(r.begin(c, text))
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](e.err)
		switch {
		case !ok:
			r.Fatalf("%s: error %v", text, e.err)
		case r.hidesAPI && failure.Code == runnerscripts.FailQuery:
		case failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != status:
			r.Errorf("%s: %+v", text, failure)
		}
	}
	if text := agenttest.Said(r, r.Events()); text != "" {
		r.Errorf("the agent said %q", text)
	}
	r.prompt(c, "plain-text")
	r.SameAsTranscript()
}
