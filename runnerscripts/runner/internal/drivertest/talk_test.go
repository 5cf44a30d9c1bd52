package drivertest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/session"
)

func pieces(r *rig) {
	r.prompt(r.talk(), "plain-text")
	const want = "Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂."
	chunks := agenttest.Payloads[runnerscripts.ContentChunk](r, r.Events(), runnerscripts.TypeAgentMessage)
	var text string
	for _, c := range chunks {
		if c.Snapshot {
			r.Errorf("a snapshot although the pieces said all: %+v", c)
		}
		text += c.Content.Text
	}
	if text != want || len(chunks) < 5 {
		r.Errorf("%d pieces: %q", len(chunks), text)
	}
	version := r.Driver.Recipe().Version
	init := r.initialized()
	if len(init) != 1 || init[0].Agent != r.name || version != "" && init[0].AgentVersion != version || init[0].Mode != r.mode ||
		r.Session.Agent.Model != "" && init[0].Model != r.Session.Agent.Model || init[0].Resumed {
		r.Errorf("session_initialized: %+v", init)
	}
	r.SameAsTranscript()
}

func sharedProcess(r *rig) {
	c := r.talk()
	r.prompt(c, "first plain-text")
	r.prompt(c, "remember")
	if n := len(r.pids()); n != 1 {
		r.Errorf("the program was started %d times", n)
	}
	if text := agenttest.Said(r, r.Events()); !strings.Contains(text, "first plain-text") {
		r.Errorf("the agent said %q", text)
	}
	if init := r.initialized(); len(init) != 1 {
		r.Errorf("session_initialized %d times", len(init))
	}
}

// usage checks queries with one and with several requests to the model.
func usage(r *rig) {
	c := r.talk()
	prompts := []string{"plain-text"}
	if !r.terse {
		prompts = append(prompts, "two-tools")
	}
	if r.subagents {
		prompts = append(prompts, "subagent")
	}
	for _, prompt := range prompts {
		before := len(r.API.Requests())
		e, _ := r.unasked(c, prompt)
		got, want := e.done.Usage, r.UsageAfter(before)
		if got.CostUSD = 0; e.err != nil || got != want || want.OutputTokens == 0 {
			r.Errorf("%s: error %v, usage\n got %+v\nwant %+v", prompt, e.err, got, want)
		}
	}
	updates := agenttest.Payloads[runnerscripts.UsageUpdate](r, r.Events(), runnerscripts.TypeUsageUpdate)
	if len(updates) == 0 && !r.hidesContext {
		r.Error("the agent does not tell how full its context is")
	}
	for _, u := range updates {
		if u.Used < 15_000 || u.Size == 0 {
			r.Errorf("the context: %+v", u)
		}
	}
}

func cost(r *rig) {
	if got := r.prompt(r.talk(), "plain-text").Usage; got.CostUSD <= 0 || got.CostUSD > 0.05 {
		r.Errorf("usage %+v", got)
	}
}

func thoughts(r *rig) {
	r.prompt(r.talk(), "think")
	blocks := agenttest.Fold(r, r.Events()).Blocks
	if len(blocks) != 3 || blocks[1].Kind != session.BlockThought || !strings.Contains(blocks[1].Text, "Let me think about it.") ||
		blocks[2].Kind != session.BlockAgent || blocks[2].Text != "I have thought about it." {
		r.Errorf("%d blocks: %s", len(blocks), agenttest.Show(r, blocks))
	}
	r.SameAsTranscript()
}

func decisionCounts(r *rig) {
	c := r.talk()
	query := r.begin(c, "run-command `touch asked`")
	req := r.asked(0)
	call := req.ToolCall
	if call.Title != "touch asked" || call.Status != runnerscripts.ToolPending || call.Kind != runnerscripts.ToolExecute {
		r.Errorf("request: %s", agenttest.Show(r, req))
	}
	allow := runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}
	if err := c.Respond(r.Context(), req.ID, allow); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopEndTurn || !r.Exists("asked") {
		r.Errorf("ended with %q, %v; the command ran: %v", e.done.StopReason, e.err, r.Exists("asked"))
	}
	r.answered(runnerscripts.AllowOnce, runnerscripts.ToolCompleted)
	if err := c.Respond(r.Context(), req.ID, allow); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		r.Errorf("a second answer: %v", err)
	}
}

func rejected(r *rig) {
	e := r.answer(r.talk(), "run-command `touch rejected`", runnerscripts.RejectOnce)
	if e.err != nil || e.done.StopReason != runnerscripts.StopEndTurn || r.Exists("rejected") {
		r.Errorf("ended with %q, %v; the command ran: %v", e.done.StopReason, e.err, r.Exists("rejected"))
	}
	r.answered(runnerscripts.RejectOnce, runnerscripts.ToolFailed)
}

// answered checks the call of this case, and how its only permission request ended.
func (r *rig) answered(kind runnerscripts.PermissionKind, status runnerscripts.ToolStatus) {
	r.Helper()
	req := r.asked(0)
	if got := r.resolved(); len(got) != 1 || got[0] != (runnerscripts.PermissionResolved{ID: req.ID, Kind: kind, Reason: "answered"}) {
		r.Errorf("resolved: %+v", got)
	}
	if calls := r.calls(); len(calls) != 1 || calls[0].ToolCallID != req.ToolCall.ToolCallID || calls[0].Status != status {
		r.Errorf("the request %s is for the calls %s", agenttest.Show(r, req), agenttest.Show(r, calls))
	}
}

func allowedAlways(r *rig) {
	c := r.talk()
	before, err := os.ReadDir(r.Session.Paths.Workspace)
	if err != nil {
		r.Fatal(err)
	}
	if e := r.answer(c, "run-command `touch always`", runnerscripts.AllowAlways); e.err != nil || !r.Exists("always") {
		r.Errorf("error %v; the command ran: %v", e.err, r.Exists("always"))
	}
	if err := os.Remove(filepath.Join(r.Session.Paths.Workspace, "always")); err != nil {
		r.Fatal(err)
	}
	if e, asked := r.unasked(c, "run-command `touch always`"); asked || e.err != nil || !r.Exists("always") {
		r.Errorf("asked again: %v, error %v; the command ran: %v", asked, e.err, r.Exists("always"))
	}
	if after, err := os.ReadDir(r.Session.Paths.Workspace); err != nil || len(after) != len(before)+1 {
		r.Errorf("the rule is in the workspace: %v, then %v, %v", before, after, err)
	}
}

func changedMode(r *rig) {
	c := r.talk()
	if err := c.SetMode(r.Context(), r.silent); err != nil {
		r.Fatal(err)
	}
	switch e, asked := r.unasked(c, "write-file `silent.txt`"); {
	case e.err != nil, asked && r.silentText == "":
		r.Errorf("asked: %v, error %v", asked, e.err)
	case !r.sent(r.silentText):
		r.Errorf("the model was not sent %q", r.silentText)
	}
	if err := c.SetMode(r.Context(), r.mode); err != nil {
		r.Fatal(err)
	}
	if text := agenttest.Said(r, r.Events()); strings.Contains(text, "MODE_UPDATE") {
		r.Errorf("the agent said %q", text) // Gemini CLI tells the mode in a text
	}
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](r, r.Events(), runnerscripts.TypeModeUpdate)
	if len(modes) != 2 || modes[0].CurrentModeID != r.silent || modes[1].CurrentModeID != r.mode {
		r.Errorf("modes: %+v", modes)
	}
	if err := c.SetMode(r.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), r.silent) {
		r.Errorf("an unknown mode: %v; want an invalid request that names the known modes", err)
	}
	if e := r.answer(c, "write-file `asked.txt`", runnerscripts.AllowOnce); e.err != nil || !r.Exists("asked.txt") {
		r.Errorf("in the first mode again: %v, written: %v", e.err, r.Exists("asked.txt"))
	}
}

func changedModel(r *rig) {
	c := r.talk()
	r.prompt(c, "plain-text")
	before := r.lastRequest().Model
	if err := c.SetModel(r.Context(), r.other); err != nil {
		r.Fatal(err)
	}
	r.prompt(c, "plain-text")
	if got := r.lastRequest().Model; got != r.otherSent || got == before {
		r.Errorf("the model was %q, then %q", before, got)
	}
	if err := c.SetModel(r.Context(), ""); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		r.Errorf("no model: %v", err)
	}
}

// interruptWithdraws checks a request for a command or for a file, and that it is withdrawn.
func interruptWithdraws(r *rig, prompt string) {
	c := r.talk()
	query := r.begin(c, prompt)
	req := r.asked(0)
	if strings.HasPrefix(prompt, "write-file") {
		r.shows(req.ToolCall, "stopped")
	}
	if err := c.Interrupt(r.Context()); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
	}
	if got := r.resolved(); len(got) != 1 || got[0] != (runnerscripts.PermissionResolved{ID: req.ID, Reason: "cancelled"}) {
		r.Errorf("resolved: %+v", got)
	}
	err := c.Respond(r.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		r.Errorf("an answer after it: %v", err)
	}
	if r.Exists("stopped") {
		r.Error("the tool ran")
	}
	if blocks := agenttest.Fold(r, r.Events()).Blocks; len(blocks) < 3 || blocks[2].Tool == nil || blocks[2].Tool.Status != runnerscripts.ToolFailed {
		r.Errorf("blocks: %s", agenttest.Show(r, blocks))
	}
	if !r.forgets {
		r.SameAsTranscript()
	}
	r.prompt(c, "plain-text") // the model's API refuses a call without a result
}

// shows checks that the call of a permission request shows the file.
func (r *rig) shows(call runnerscripts.ToolCall, name string) {
	r.Helper()
	file, diff := r.WorkspaceFile(name), diffOf(&call)
	if !strings.Contains(call.Title, name) || len(call.Locations) == 0 || call.Locations[0].Path != file || !r.terse && (diff == nil || diff.Path != file) {
		r.Errorf("the request does not show %s: %s", file, agenttest.Show(r, call))
	}
}

func earlyInterrupt(r *rig) {
	c := r.talk()
	query := r.begin(c, "slow-stream")
	r.wait("the prompt is reported", agenttest.OfType(runnerscripts.TypeUserMessage))
	if err := c.Interrupt(r.Context()); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
	}
	r.prompt(c, "plain-text")
}

// mostRequests is more than a query sends to the model unless the model calls tools forever.
const mostRequests = 20

// unasked runs a query. It allows what the agent asks for, and reports whether the agent asked.
func (r *rig) unasked(c agent.Conversation, prompt string) (end ended, asked bool) {
	r.Helper()
	before, sent := len(r.Requests()), len(r.API.Requests())
	query := r.begin(c, prompt)
	n := before
	r.until("the end of the query", func() bool {
		for all := r.Requests(); n < len(all); n++ {
			// A request that is no longer pending needs no answer.
			_ = c.Respond(r.Context(), all[n].ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
		}
		if n := len(r.API.Requests()) - sent; n > mostRequests {
			r.Fatalf("after %d requests to the model the query still runs", n)
		}
		return query.isOver()
	})
	return query.ended, len(r.Requests()) > before
}
