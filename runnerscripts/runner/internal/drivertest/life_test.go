package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func recipe(r *rig) {
	if r.pin == "" {
		if got := r.Driver.Recipe(); len(got.NPM) > 0 || got.Program != "" {
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
	got := r.Driver.Recipe()
	if _, ok := installed.Dependencies[r.pin]; ok && !slices.Equal(got.NPM, []string{r.pin + "@" + version}) {
		r.Errorf("the recipe installs %v", got.NPM)
	}
	if len(got.NPM) != 1 || !strings.HasSuffix(got.NPM[0], "@"+version) || got.Version != version || version == "" {
		r.Errorf("the recipe installs %v, version %q; the tests run %q", got.NPM, got.Version, version)
	}
}

func packagedVersion(r *rig) {
	if r.pin == "" {
		return // the driver knows no package of the program
	}
	dir := r.TempDir()
	program, started := filepath.Join(dir, r.packed), filepath.Join(dir, "started")
	version, _, _ := strings.Cut(r.Driver.Recipe().Version, ".")
	version += ".999.0"
	agenttest.WriteFile(r, filepath.Join(dir, "package.json"), `{"name":"`+r.npm+`","version":"`+version+`"}`)
	agenttest.WriteFile(r, program, "#!/bin/sh\ntouch "+started+"\necho 0.1.0\n")
	if err := os.Chmod(program, 0o700); err != nil {
		r.Fatal(err)
	}
	r.Session.Agent.Command = []string{program}
	data, err := r.Driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: r.Session})
	if err != nil || data.AgentVersion != version {
		r.Errorf("version %q, %v", data.AgentVersion, err)
	}
	if _, err := os.Stat(started); err == nil {
		r.Error("the program was started")
	}
}

func missingProgram(r *rig) {
	if r.pin == "" {
		r.Session.Agent.Command = []string{"no-such-agent"}
	}
	r.Session.Agent.Env = map[string]string{"PATH": r.TempDir()}
	_, err := r.Driver.Start(r.Context(), runnerscripts.QueryRequest{Session: r.Session}, r.Out)
	advice := "correct agent.command"
	if r.pin != "" {
		pkg := r.Driver.Recipe().NPM[0]
		advice = "npm install -g " + pkg[:strings.LastIndex(pkg, "@")]
	}
	if !agenttest.HasCode(err, runnerscripts.FailAgentMissing) || !strings.Contains(err.Error(), advice) {
		r.Errorf("start: %v", err)
	}
	if _, err = r.Driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: r.Session}); !agenttest.HasCode(err, runnerscripts.FailAgentMissing) {
		r.Errorf("setup: %v", err)
	}
}

func noTranscript(r *rig) {
	r.Session.Agent.Command = []string{"true"}
	tr, err := r.Driver.Transcript(r.Context(), runnerscripts.TranscriptRequest{Session: r.Session, Events: true}, r.Out)
	if err != nil || tr.Main != "" || tr.Subagents != nil || len(r.Out.All()) != 0 {
		r.Errorf("%+v, %v, events:\n%s", tr, err, agenttest.Describe(r.Out.All()))
	}
}

func crash(r *rig) {
	c := r.talk()
	r.prompt(c, "first plain-text")
	query := r.begin(c, "run-command `touch asked`")
	req := r.asked(0)
	starts := len(r.pids())
	if err := syscall.Kill(r.pid(), syscall.SIGKILL); err != nil {
		r.Fatal(err)
	}
	if e := r.await(query); !agenttest.HasCode(e.err, runnerscripts.FailAgent) || !strings.Contains(e.err.Error(), "killed") {
		r.Errorf("the crash is not reported as %s: %v", runnerscripts.FailAgent, e.err)
	}
	if got := r.resolved(); len(got) != 1 || got[0] != (runnerscripts.PermissionResolved{ID: req.ID, Reason: "cancelled"}) {
		r.Errorf("resolved: %+v", got)
	}
	r.prompt(c, "remember")
	if n := len(r.pids()) - starts; n != 1 {
		r.Errorf("the program was started %d times", n)
	}
	if text := agenttest.Said(r, r.Out.All()); !strings.Contains(text, "You said before: first plain-text") {
		r.Errorf("the agent said %q", text)
	}
}

func endOfPromptsContext(r *rig) {
	c := r.talk()
	r.prompt(c, "before it plain-text")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	query := r.beginWith(ctx, c, "slow-stream")
	r.held()
	cancel()
	if e := r.await(query); !errors.Is(e.err, context.Canceled) {
		r.Fatalf("ended with %q, %v", e.done.StopReason, e.err)
	}
	r.prompt(c, "remember")
	if texts := r.lastRequest().Texts; !slices.Contains(texts, "before it plain-text") {
		r.Errorf("the model was sent %q", texts)
	}
}

func closeRunning(r *rig) {
	c := r.talk()
	query := r.begin(c, "slow-stream")
	r.held()
	for range 2 { // the second call does nothing
		if err := c.Close(); err != nil {
			r.Fatal(err)
		}
	}
	if e := r.await(query); !agenttest.HasCode(e.err, runnerscripts.FailAgent) {
		r.Fatalf("the closed query ended with %q, %v", e.done.StopReason, e.err)
	}
	r.gone(r.pid())
	if _, err := c.Prompt(r.Context(), "q", "plain-text"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		r.Errorf("a prompt after close: %v", err)
	}
}

func endOfContext(r *rig) {
	c := r.talk()
	query := r.begin(c, "slow-stream")
	r.held()
	r.cancel()
	if e := r.await(query); e.err == nil {
		r.Fatalf("the query goes on, and ended with %q", e.done.StopReason)
	}
	r.gone(r.pid())
	if err := c.Close(); err != nil {
		r.Error(err)
	}
}

func newProcess(r *rig) {
	c := r.talk()
	r.prompt(c, "the secret word is plum")
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
	r.shared = r.Start()
	done := r.prompt(r.shared, "remember")
	all := r.API.Requests()
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
	r.SameAsTranscript()
}

// restored restores the transcript in another session, as in another sandbox.
func restored(r *rig) {
	c := r.talk()
	r.prompt(c, "the secret word is plum")
	prompts := []string{"two-tools"}
	if r.subagents {
		prompts = append(prompts, "subagent")
	}
	for _, prompt := range prompts {
		if e, _ := r.unasked(c, prompt); e.err != nil {
			r.Fatal(e.err)
		}
	}
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
	before, events := r.Transcript()
	elsewhere := newRig(r, r.subject)
	elsewhere.Session.SessionID = r.Session.SessionID
	elsewhere.real()
	setUp := func() {
		data, err := r.Driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: elsewhere.Session, Transcript: &before})
		if err != nil || data.AgentVersion != r.Driver.Recipe().Version {
			r.Fatalf("set up: %+v, %v", data, err)
		}
	}
	setUp()
	if !r.imports {
		setUp() // a second one must work, too
		again, stored := elsewhere.Transcript()
		// The blocks have the paths of their session.
		made, back := agenttest.Fold(r, events.All()), agenttest.Fold(r, stored.All())
		if len(made.Blocks) == 0 || len(made.Blocks) != len(back.Blocks) {
			r.Errorf("%d blocks, and %d after the restore", len(made.Blocks), len(back.Blocks))
		}
		if r.subagents && len(made.Subagents) == 0 || len(made.Subagents) != len(back.Subagents) {
			r.Errorf("%d subagents, and %d after the restore", len(made.Subagents), len(back.Subagents))
		}
		if agenttest.Show(r, again) != agenttest.Show(r, before) {
			r.Error("the restored transcript is another one")
		}
	}
	elsewhere.prompt(elsewhere.Start(), "remember")
	// The rule before may have added to the conversation.
	last := elsewhere.lastRequest()
	if len(last.Texts) < 2 || last.Texts[0] != "the secret word is plum" {
		r.Errorf("the model was sent %q", last.Texts)
	}
	if workspace := elsewhere.Session.Paths.Workspace; !strings.Contains(string(last.Body), workspace) {
		r.Errorf("the model was not sent the new workspace %s", workspace)
	}
	if r.imports {
		return
	}
	if after, _ := elsewhere.Transcript(); !strings.HasPrefix(after.Main, before.Main) {
		r.Error("the session does not go on with the restored transcript")
	}
}

// unreachable closes the port of the API.
func unreachable(r *rig) {
	c := r.talk()
	if err := r.API.Close(); err != nil {
		r.Fatal(err)
	}
	query := r.begin(c, "plain-text")
	if r.hidesAPI {
		r.wait("the prompt is reported", agenttest.OfType(runnerscripts.TypeUserMessage))
	} else {
		r.wait("a warning", func(e runnerscripts.Event) bool {
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

func budget(r *rig) {
	r.Profile.BudgetUSD = 0.0001
	endsEarly(r)
}

// endsEarly runs two queries that only a limit ends: each has a limit of its own.
func endsEarly(r *rig) {
	c := r.talk()
	for range 2 {
		before := len(r.API.Requests())
		if e, _ := r.unasked(c, "endless"); e.err != nil || e.done.StopReason != runnerscripts.StopMaxRequests {
			r.Errorf("ended with %q, %v", e.done.StopReason, e.err)
		}
		// The program may send one more request before the query is stopped.
		if n := len(r.API.Requests()) - before; r.Session.Agent.MaxTurns > 0 && (n < r.Session.Agent.MaxTurns || n > r.Session.Agent.MaxTurns+1) {
			r.Errorf("%d requests with a limit of %d", n, r.Session.Agent.MaxTurns)
		}
	}
}

// gone waits for the end of the process group of a program.
func (r *rig) gone(pid int) {
	r.Helper()
	r.until(fmt.Sprintf("the end of process group %d", pid), func() bool { return syscall.Kill(-pid, 0) != nil })
}
