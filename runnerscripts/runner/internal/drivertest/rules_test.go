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
)

// rule is something that every driver does. Its name is unique.
type rule struct {
	name  string
	check func(r *rig)
}

func rules() []rule {
	return []rule{
		{"the recipe installs what the tests run", recipe},
		{"a program in an npm package is not started for its version", packagedVersion},
		{"a missing program says how to install it", missingProgram},
		{"no transcript yet is an empty one", noTranscript},
		{"text arrives in pieces with all its white space", pieces},
		{"two prompts share a process", sharedProcess},
		{"a system prompt reaches the model or is refused", systemPrompt},
		{"a decision counts once", decisionCounts},
		{"a crash withdraws the permission request and the next prompt goes on", crash},
		{"an interrupt withdraws the permission request of a command", func(r *rig) { interruptWithdraws(r, "run-command `touch asked`") }},
		{"an interrupt withdraws the permission request of a file", func(r *rig) { interruptWithdraws(r, "write-file `asked`") }},
		{"an interrupt right after the prompt is not lost", earlyInterrupt},
		{"closing ends a running query and the program", closeRunning},
		{"the end of the context ends the program", endOfContext},
		{"a new process remembers the conversation", newProcess},
		{"an API that cannot be reached is reported while the agent tries again", unreachable},
	}
}

// TestDrivers tries every rule with every agent.
func TestDrivers(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, rule := range rules() {
				t.Run(rule.name, func(t *testing.T) {
					t.Parallel()
					rule.check(newRig(t, s, 10*time.Minute))
				})
			}
		})
	}
}

func recipe(r *rig) {
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
	r.session.Agent.Env = map[string]string{"PATH": r.TempDir()}
	_, err := r.driver.Start(r.Context(), runnerscripts.QueryRequest{Session: r.session}, r.out)
	pkg := r.driver.Recipe().NPM[0]
	if name := pkg[:strings.LastIndex(pkg, "@")]; !agenttest.HasCode(err, runnerscripts.FailAgentMissing) || !strings.Contains(err.Error(), "npm install -g "+name) {
		r.Errorf("start: %v", err)
	}
	if _, err = r.driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: r.session}); !agenttest.HasCode(err, runnerscripts.FailAgentMissing) {
		r.Errorf("setup: %v", err)
	}
}

func noTranscript(r *rig) {
	tr, err := r.driver.Transcript(r.Context(), runnerscripts.TranscriptRequest{Session: r.session, Events: true}, r.out)
	if err != nil || tr.Main != "" || tr.Subagents != nil || len(r.out.All()) != 0 {
		r.Errorf("%+v, %v, events:\n%s", tr, err, agenttest.Describe(r.out.All()))
	}
}

func pieces(r *rig) {
	r.real()
	r.prompt(r.start(), "plain-text")
	const want = "Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂."
	chunks := agenttest.Payloads[runnerscripts.ContentChunk](r, r.out.All(), runnerscripts.TypeAgentMessage)
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
	init := r.initialized()
	if len(init) != 1 || init[0].Agent != r.name || init[0].AgentVersion != r.driver.Recipe().Version || init[0].Mode != r.mode ||
		r.session.Agent.Model != "" && init[0].Model != r.session.Agent.Model || init[0].Resumed {
		r.Errorf("session_initialized: %+v", init)
	}
	r.sameAsTranscript()
}

func sharedProcess(r *rig) {
	r.real()
	c := r.start()
	r.prompt(c, "first plain-text")
	r.prompt(c, "remember")
	if n := len(r.pids()); n != 1 {
		r.Errorf("the program was started %d times", n)
	}
	if text := agenttest.Said(r, r.out.All()); !strings.Contains(text, "You said before: first plain-text") {
		r.Errorf("the agent said %q", text)
	}
	if init := r.initialized(); len(init) != 1 {
		r.Errorf("session_initialized %d times", len(init))
	}
}

func systemPrompt(r *rig) {
	r.session.Agent.SystemPrompt = "Speak like a pirate."
	recipe := r.driver.Recipe()
	if !slices.Contains(recipe.Supports, runnerscripts.FeatureSystemPrompt) {
		if err := agent.CheckFeatures(recipe, r.session.Agent, runnerscripts.Profile{}); !agenttest.HasCode(err, runnerscripts.FailUnsupported) {
			r.Errorf("error %v", err)
		}
		return
	}
	r.real()
	r.prompt(r.start(), "plain-text")
	if all := r.api.Requests(); len(all) == 0 || !strings.Contains(string(all[len(all)-1].Body), "Speak like a pirate.") {
		r.Error("the system prompt is not in the request")
	}
}

func decisionCounts(r *rig) {
	r.real()
	c := r.start()
	query := r.begin(c, "run-command `touch asked`")
	req := r.asked()
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

func crash(r *rig) {
	r.real()
	c := r.start()
	r.prompt(c, "first plain-text")
	query := r.begin(c, "run-command `touch asked`")
	req := r.asked()
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
	r.real()
	c := r.start()
	query := r.begin(c, prompt)
	req := r.asked()
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
	if r.exists("asked") {
		r.Error("the tool ran")
	}
	if blocks := agenttest.Fold(r, r.out.All()).Blocks; len(blocks) < 3 || blocks[2].Tool == nil || blocks[2].Tool.Status != runnerscripts.ToolFailed {
		r.Errorf("blocks: %s", agenttest.Show(r, blocks))
	}
	if !r.forgets {
		r.sameAsTranscript()
	}
}

func earlyInterrupt(r *rig) {
	r.real()
	c := r.start()
	query := r.begin(c, "slow-stream")
	r.out.Wait(r.Context(), r, agenttest.OfType(runnerscripts.TypeUserMessage))
	if err := c.Interrupt(r.Context()); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
	}
	r.prompt(c, "plain-text")
}

func closeRunning(r *rig) {
	r.real()
	c := r.start()
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
	r.real()
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

func newProcess(r *rig) {
	r.real()
	c := r.start()
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

// unreachable has an API whose port is closed.
func unreachable(r *rig) {
	r.real()
	if err := r.api.Close(); err != nil {
		r.Fatal(err)
	}
	c := r.start()
	query := r.begin(c, "plain-text")
	ctx, cancel := context.WithTimeout(r.Context(), r.patience)
	defer cancel()
	r.out.Wait(ctx, r, func(e runnerscripts.Event) bool {
		l, ok := e.Value().(*runnerscripts.Log)
		return ok && l.Level == "warn" && strings.Contains(l.Message, "the model's API")
	})
	if err := c.Interrupt(r.Context()); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); e.err != nil || e.done.StopReason != runnerscripts.StopCancelled {
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
