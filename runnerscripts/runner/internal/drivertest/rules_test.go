package drivertest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/session"
)

// group says which rules share a session of an agent, since a start is what takes time.
type group int

const (
	alone    group = iota // a session for this rule
	talking               // of a conversation that goes on
	profiled              // of a session with everything in its profile that the agent supports
)

// rule is something that every driver does, if its agent has the features. Its name is
// unique. The rules of a group are checked in their order.
type rule struct {
	name     string
	group    group
	features []runnerscripts.Feature // that it shows
	check    func(r *rig)
}

func rules() []rule {
	const (
		permissions = runnerscripts.FeaturePermissions
		interrupt   = runnerscripts.FeatureInterrupt
	)
	return slices.Concat([]rule{
		{name: "the recipe installs what the tests run", check: recipe},
		{name: "a program in an npm package is not started for its version", check: packagedVersion},
		{name: "a missing program says how to install it", check: missingProgram},
		{name: "no transcript yet is an empty one", check: noTranscript},
		{name: "a crash withdraws the permission request and the next prompt goes on", check: crash},
		{name: "closing ends a running query and the program", check: closeRunning},
		{name: "the end of the context ends the program", check: endOfContext},
		{name: "a new process remembers the conversation", check: newProcess},
		{"a restored session remembers the conversation", alone, []runnerscripts.Feature{runnerscripts.FeatureResume}, restored},
		{name: "an API that cannot be reached is reported while the agent tries again", check: unreachable},
		{"a limit of turns ends the query", alone, []runnerscripts.Feature{runnerscripts.FeatureMaxTurns}, maxTurns},
		{"a budget ends the query", alone, []runnerscripts.Feature{runnerscripts.FeatureBudget}, budget},

		{"text arrives in pieces with all its white space", talking, nil, pieces},
		{"two prompts share a process", talking, nil, sharedProcess},
		{"the tokens of a query are its own", talking, []runnerscripts.Feature{runnerscripts.FeatureUsage}, usage},
		{"a query tells its cost", talking, []runnerscripts.Feature{runnerscripts.FeatureCost}, cost},
		{"thoughts are told", talking, []runnerscripts.Feature{runnerscripts.FeatureThinking}, thoughts},
		{"a decision counts once", talking, []runnerscripts.Feature{permissions}, decisionCounts},
		{"a rejected tool does not run", talking, []runnerscripts.Feature{permissions}, rejected},
		{"the mode changes between prompts", talking, []runnerscripts.Feature{runnerscripts.FeaturePermissionMode, runnerscripts.FeatureSetMode}, changedMode},
		{"an interrupt withdraws the permission request of a command", talking, []runnerscripts.Feature{interrupt}, func(r *rig) { interruptWithdraws(r, "run-command `touch stopped`") }},
		{"an interrupt withdraws the permission request of a file", talking, []runnerscripts.Feature{interrupt}, func(r *rig) { interruptWithdraws(r, "write-file `stopped`") }},
		{"an interrupt right after the prompt is not lost", talking, []runnerscripts.Feature{interrupt}, earlyInterrupt},
		// What these change stays so.
		{"what is allowed for the session is not asked again", talking, []runnerscripts.Feature{runnerscripts.FeatureAllowAlways}, allowedAlways},
		{"the model changes between prompts", talking, []runnerscripts.Feature{runnerscripts.FeatureModel, runnerscripts.FeatureSetModel}, changedModel},
	}, profileRules())
}

// TestDrivers tries every rule with every agent, and compares the table of agents with what
// that has shown.
func TestDrivers(t *testing.T) {
	table := newTable()
	t.Cleanup(func() { table.check(t) })
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, g := range []group{talking, profiled} {
				t.Run(map[group]string{talking: "talking", profiled: "profiled"}[g], func(t *testing.T) {
					t.Parallel()
					shared := newRig(t, s, 10*time.Minute)
					for _, rule := range rules() {
						if rule.group == g && shared.supports(rule.features...) {
							t.Run(rule.name, func(t *testing.T) { table.run(t, s, rule, func() { shared.in(t, rule.check) }) })
						}
					}
				})
			}
			for _, rule := range rules() {
				if r := newRig(t, s, 10*time.Minute); rule.group == alone && r.supports(rule.features...) {
					t.Run(rule.name, func(t *testing.T) {
						t.Parallel()
						table.run(t, s, rule, func() { rule.check(newRig(t, s, 10*time.Minute)) })
					})
				}
			}
		})
	}
}

func recipe(r *rig) {
	if r.pin == "" {
		if got := r.driver.Recipe(); len(got.NPM) > 0 || got.Program != "" {
			r.Errorf("the recipe installs %+v", got)
		}
		return
	}
	data, err := os.ReadFile("../../../../e2e/agents/package.json")
	if err != nil {
		r.Fatal(err)
	}
	var installed struct {
		Dependencies         map[string]string `json:"dependencies"`
		OptionalDependencies map[string]string `json:"optionalDependencies"`
	}
	if err := json.Unmarshal(data, &installed); err != nil {
		r.Fatal(err)
	}
	version := installed.Dependencies[r.pin] + installed.OptionalDependencies[r.pin]
	got := r.driver.Recipe()
	if _, ok := installed.Dependencies[r.pin]; ok && !slices.Equal(got.NPM, []string{r.pin + "@" + version}) {
		r.Errorf("the recipe installs %v", got.NPM)
	}
	if len(got.NPM) != 1 || !strings.HasSuffix(got.NPM[0], "@"+version) || got.Version != version || version == "" {
		r.Errorf("the recipe installs %v, version %q; the tests run %q", got.NPM, got.Version, version)
	}
}

func packagedVersion(r *rig) {
	if r.pin == "" {
		return // it is in no package that the driver knows
	}
	dir := r.TempDir()
	program, started := filepath.Join(dir, r.packed), filepath.Join(dir, "started")
	version, _, _ := strings.Cut(r.driver.Recipe().Version, ".")
	version += ".999.0"
	agenttest.WriteFile(r, filepath.Join(dir, "package.json"), `{"name":"`+r.npm+`","version":"`+version+`"}`)
	agenttest.WriteFile(r, program, "#!/bin/sh\ntouch "+started+"\necho 0.1.0\n")
	if err := os.Chmod(program, 0o700); err != nil {
		r.Fatal(err)
	}
	r.session.Agent.Command = []string{program}
	data, err := r.driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: r.session})
	if err != nil || data.AgentVersion != version {
		r.Errorf("version %q, %v", data.AgentVersion, err)
	}
	if _, err := os.Stat(started); err == nil {
		r.Error("the program was started")
	}
}

func missingProgram(r *rig) {
	if r.pin == "" {
		r.session.Agent.Command = []string{"no-such-agent"}
	}
	r.session.Agent.Env = map[string]string{"PATH": r.TempDir()}
	_, err := r.driver.Start(r.Context(), runnerscripts.QueryRequest{Session: r.session}, r.out)
	advice := "correct agent.command"
	if r.pin != "" {
		pkg := r.driver.Recipe().NPM[0]
		advice = "npm install -g " + pkg[:strings.LastIndex(pkg, "@")]
	}
	if !agenttest.HasCode(err, runnerscripts.FailAgentMissing) || !strings.Contains(err.Error(), advice) {
		r.Errorf("start: %v", err)
	}
	if _, err = r.driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: r.session}); !agenttest.HasCode(err, runnerscripts.FailAgentMissing) {
		r.Errorf("setup: %v", err)
	}
}

func noTranscript(r *rig) {
	r.session.Agent.Command = []string{"true"}
	tr, err := r.driver.Transcript(r.Context(), runnerscripts.TranscriptRequest{Session: r.session, Events: true}, r.out)
	if err != nil || tr.Main != "" || tr.Subagents != nil || len(r.out.All()) != 0 {
		r.Errorf("%+v, %v, events:\n%s", tr, err, agenttest.Describe(r.out.All()))
	}
}

func pieces(r *rig) {
	r.prompt(r.talk(), "plain-text")
	const want = "Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂."
	chunks := agenttest.Payloads[runnerscripts.ContentChunk](r, r.events(), runnerscripts.TypeAgentMessage)
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
	version := r.driver.Recipe().Version
	init := r.initialized()
	if len(init) != 1 || init[0].Agent != r.name || version != "" && init[0].AgentVersion != version || init[0].Mode != r.mode ||
		r.session.Agent.Model != "" && init[0].Model != r.session.Agent.Model || init[0].Resumed {
		r.Errorf("session_initialized: %+v", init)
	}
	r.sameAsTranscript()
}

func sharedProcess(r *rig) {
	c := r.talk()
	r.prompt(c, "first plain-text")
	r.prompt(c, "remember")
	if n := len(r.pids()); n != 1 {
		r.Errorf("the program was started %d times", n)
	}
	if text := agenttest.Said(r, r.events()); !strings.Contains(text, "first plain-text") {
		r.Errorf("the agent said %q", text)
	}
	if init := r.initialized(); len(init) != 1 {
		r.Errorf("session_initialized %d times", len(init))
	}
}

func usage(r *rig) {
	got := r.prompt(r.talk(), "plain-text").Usage
	if want := r.lastRequest().Usage; got.InputTokens != want.InputTokens || got.OutputTokens != want.OutputTokens || got.CacheReadTokens != want.CacheReadTokens {
		r.Errorf("usage %+v, the model says %+v", got, want)
	}
}

func cost(r *rig) {
	if got := r.prompt(r.talk(), "plain-text").Usage; got.CostUSD <= 0 {
		r.Errorf("usage %+v", got)
	}
}

func thoughts(r *rig) {
	r.prompt(r.talk(), "think")
	blocks := agenttest.Fold(r, r.events()).Blocks
	if len(blocks) != 3 || blocks[1].Kind != session.BlockThought || !strings.Contains(blocks[1].Text, "Let me think about it.") ||
		blocks[2].Kind != session.BlockAgent || blocks[2].Text != "I have thought about it." {
		r.Errorf("blocks: %s", agenttest.Show(r, blocks))
	}
	r.sameAsTranscript()
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
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopEndTurn || !r.exists("asked") {
		r.Errorf("ended with %q, %v; the command ran: %v", e.done.StopReason, e.err, r.exists("asked"))
	}
	if got := r.resolved(); len(got) != 1 || got[0] != (runnerscripts.PermissionResolved{ID: req.ID, Kind: runnerscripts.AllowOnce, Reason: "answered"}) {
		r.Errorf("resolved: %+v", got)
	}
	if err := c.Respond(r.Context(), req.ID, allow); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		r.Errorf("a second answer: %v", err)
	}
}

func rejected(r *rig) {
	if e := r.answer(r.talk(), "run-command `touch rejected`", runnerscripts.RejectOnce); e.err != nil || r.exists("rejected") {
		r.Errorf("error %v; the command ran: %v", e.err, r.exists("rejected"))
	}
}

func allowedAlways(r *rig) {
	c := r.talk()
	if e := r.answer(c, "run-command `touch always`", runnerscripts.AllowAlways); e.err != nil || !r.exists("always") {
		r.Errorf("error %v; the command ran: %v", e.err, r.exists("always"))
	}
	if err := os.Remove(filepath.Join(r.session.Paths.Workspace, "always")); err != nil {
		r.Fatal(err)
	}
	if e, asked := r.unasked(c, "run-command `touch always`"); asked || e.err != nil || !r.exists("always") {
		r.Errorf("asked again: %v, error %v; the command ran: %v", asked, e.err, r.exists("always"))
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
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](r, r.events(), runnerscripts.TypeModeUpdate)
	if len(modes) != 2 || modes[0].CurrentModeID != r.silent || modes[1].CurrentModeID != r.mode {
		r.Errorf("modes: %+v", modes)
	}
	if err := c.SetMode(r.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		r.Errorf("an unknown mode: %v", err)
	}
	if e := r.answer(c, "write-file `asked.txt`", runnerscripts.AllowOnce); e.err != nil || !r.exists("asked.txt") {
		r.Errorf("in the first mode again: %v, written: %v", e.err, r.exists("asked.txt"))
	}
}

func changedModel(r *rig) {
	c := r.talk()
	before := r.lastRequest().Model
	if err := c.SetModel(r.Context(), r.other); err != nil {
		r.Fatal(err)
	}
	r.prompt(c, "plain-text")
	if got := r.lastRequest().Model; got != r.otherSent || got == before {
		r.Errorf("the model was %q, then %q", before, got)
	}
}

func crash(r *rig) {
	c := r.talk()
	r.prompt(c, "first plain-text")
	query := r.begin(c, "run-command `touch asked`")
	req := r.asked(0)
	if err := syscall.Kill(r.pids()[0], syscall.SIGKILL); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); !agenttest.HasCode(e.err, runnerscripts.FailAgent) || !strings.Contains(e.err.Error(), "killed") {
		r.Errorf("error %v", e.err)
	}
	if got := r.resolved(); len(got) != 1 || got[0] != (runnerscripts.PermissionResolved{ID: req.ID, Reason: "cancelled"}) {
		r.Errorf("resolved: %+v", got)
	}
	r.prompt(c, "remember")
	if n := len(r.pids()); n != 2 {
		r.Errorf("the program was started %d times", n)
	}
	if text := agenttest.Said(r, r.out.All()); !strings.Contains(text, "You said before: first plain-text") {
		r.Errorf("the agent said %q", text)
	}
}

func interruptWithdraws(r *rig, prompt string) {
	c := r.talk()
	query := r.begin(c, prompt)
	req := r.asked(0)
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
	if r.exists("stopped") {
		r.Error("the tool ran")
	}
	if blocks := agenttest.Fold(r, r.events()).Blocks; len(blocks) < 3 || blocks[2].Tool == nil || blocks[2].Tool.Status != runnerscripts.ToolFailed {
		r.Errorf("blocks: %s", agenttest.Show(r, blocks))
	}
	if !r.forgets {
		r.sameAsTranscript()
	}
}

func earlyInterrupt(r *rig) {
	c := r.talk()
	query := r.begin(c, "slow-stream")
	r.wait(agenttest.OfType(runnerscripts.TypeUserMessage))
	if err := c.Interrupt(r.Context()); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
	}
	r.prompt(c, "plain-text")
}

func closeRunning(r *rig) {
	c := r.talk()
	query := r.begin(c, "slow-stream")
	if err := r.api.WaitHeld(r.Context()); err != nil {
		r.Fatal(err)
	}
	for range 2 { // again does nothing
		if err := c.Close(); err != nil {
			r.Fatal(err)
		}
	}
	if e := r.await(query); !agenttest.HasCode(e.err, runnerscripts.FailAgent) {
		r.Errorf("error %v", e.err)
	}
	r.gone(r.pids()[0])
	if _, err := c.Prompt(r.Context(), "q", "plain-text"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		r.Errorf("a prompt after close: %v", err)
	}
}

func endOfContext(r *rig) {
	r.setUp()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c, err := r.driver.Start(ctx, runnerscripts.QueryRequest{Session: r.session}, r.out)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	cancel()
	r.gone(r.pids()[0])
	if err := c.Close(); err != nil {
		r.Error(err)
	}
}

// unasked runs a query. It allows what the agent asks for, and reports whether there was
// something.
func (r *rig) unasked(c agent.Conversation, prompt string) (end ended, asked bool) {
	r.Helper()
	before := len(r.requests())
	query := r.begin(c, prompt)
	late := time.NewTimer(r.patience)
	defer late.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := before; ; {
		select {
		case e := <-query:
			return e, len(r.requests()) > before
		case <-tick.C:
		case <-late.C:
			r.Fatalf("the query has not ended; there were:\n%s", agenttest.Describe(r.events()))
		}
		for all := r.requests(); n < len(all); n++ {
			// One that is not waiting any more needs no answer.
			_ = c.Respond(r.Context(), all[n].ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
		}
	}
}

func newProcess(r *rig) {
	c := r.talk()
	r.prompt(c, "the secret word is plum")
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
	done := r.prompt(r.start(), "remember")
	all := r.api.Requests()
	last := all[len(all)-1]
	if len(last.Texts) != 2 || last.Texts[0] != "the secret word is plum" {
		r.Errorf("the model was sent %q", last.Texts)
	}
	if done.Usage.InputTokens != last.Usage.InputTokens || done.Usage.CacheReadTokens != last.Usage.CacheReadTokens {
		r.Errorf("the costs before the resume are counted again: %+v", done.Usage)
	}
	if init := r.initialized(); len(init) != 2 || init[0].Resumed || !init[1].Resumed {
		r.Errorf("session_initialized: %+v", init)
	}
	r.sameAsTranscript()
}

// restored has the transcript in another session, as in another sandbox.
func restored(r *rig) {
	c := r.talk()
	r.prompt(c, "the secret word is plum")
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
	stored, err := r.driver.Transcript(r.Context(), runnerscripts.TranscriptRequest{Session: r.session}, r.out)
	if err != nil {
		r.Fatal(err)
	}
	elsewhere := newRig(r, r.subject, r.patience)
	elsewhere.session.SessionID = r.session.SessionID
	elsewhere.real()
	if _, err := r.driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: elsewhere.session, Transcript: &stored}); err != nil {
		r.Fatal(err)
	}
	elsewhere.prompt(elsewhere.start(), "remember")
	if texts := elsewhere.lastRequest().Texts; len(texts) != 2 || texts[0] != "the secret word is plum" {
		r.Errorf("the model was sent %q", texts)
	}
}

// unreachable has an API whose port is closed.
func unreachable(r *rig) {
	r.setUp()
	if err := r.api.Close(); err != nil {
		r.Fatal(err)
	}
	c := r.start()
	query := r.begin(c, "plain-text")
	if r.hidesRetries {
		r.wait(agenttest.OfType(runnerscripts.TypeUserMessage))
	} else {
		r.wait(func(e runnerscripts.Event) bool {
			l, ok := e.Value().(*runnerscripts.Log)
			return ok && l.Level == "warn" && strings.Contains(l.Message, "the model's API")
		})
	}
	if err := c.Interrupt(r.Context()); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
	}
}

func maxTurns(r *rig) {
	r.session.Agent.MaxTurns = 2
	endsEarly(r)
}

func budget(r *rig) {
	r.profile.BudgetUSD = 0.0001
	endsEarly(r)
}

// endsEarly has a query that would go on for ever.
func endsEarly(r *rig) {
	e, _ := r.unasked(r.talk(), "endless")
	if e.err != nil || e.done.StopReason != runnerscripts.StopMaxRequests {
		r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
	}
}

// gone waits for the end of the process group of a program.
func (r *rig) gone(pid int) {
	r.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(r.patience); syscall.Kill(-pid, 0) == nil; <-tick.C {
		if time.Now().After(end) {
			r.Fatalf("the program's process group %d is still there", pid)
		}
	}
}
