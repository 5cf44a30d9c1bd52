package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/permission"
)

const works = `{"turns":[{"steps":[
	{"thought":"Let me see."},
	{"plan":{"entries":[{"content":"write it","status":"in_progress"}]}},
	{"text":"You said {{prompt}}. I write it down."},
	{"write":{"path":"made.txt","content":"hello\n"}},
	{"run":["cat","made.txt"]},
	{"text":"Done, {{model}}."}
]}]}`

func TestAnEditorSeesWhatTheAgentDoes(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", works), "--model", "m1")
	id, dir := e.session()
	if stop := e.say(id, "good day"); stop != acp.StopReasonEndTurn {
		t.Errorf("stopped because of %s", stop)
	}
	if text := e.text(id); text != "You said good day. I write it down.Done, m1." {
		t.Errorf("the agent said %q", text)
	}
	content, err := os.ReadFile(filepath.Join(dir, "made.txt"))
	if err != nil || string(content) != "hello\n" {
		t.Errorf("the folder's file holds %q, %v", content, err)
	}
	var kinds []string
	var at []acp.ToolCallLocation
	calls := map[acp.ToolCallId]bool{}
	for _, u := range e.of(id) {
		switch {
		case u.AgentThoughtChunk != nil:
			kinds = append(kinds, "thought")
		case u.AgentMessageChunk != nil:
			kinds = append(kinds, "message")
		case u.Plan != nil:
			kinds = append(kinds, "plan "+u.Plan.Entries[0].Content)
		case u.ToolCall != nil:
			calls[u.ToolCall.ToolCallId] = true
			kinds = append(kinds, string(u.ToolCall.Kind))
			at = append(at, u.ToolCall.Locations...)
		case u.ToolCallUpdate != nil && !calls[u.ToolCallUpdate.ToolCallId]:
			t.Errorf("an update of a call that was not told: %+v", u.ToolCallUpdate)
		case u.ToolCallUpdate != nil:
			at = append(at, u.ToolCallUpdate.Locations...)
			for _, c := range u.ToolCallUpdate.Content {
				if c.Diff != nil {
					at = append(at, acp.ToolCallLocation{Path: c.Diff.Path})
				}
			}
		}
	}
	if kinds = slices.Compact(kinds); !slices.Equal(kinds, []string{"thought", "plan write it", "message", "edit", "execute", "message"}) {
		t.Errorf("told were %q", kinds)
	}
	if made := filepath.Join(dir, "made.txt"); len(at) < 2 || slices.ContainsFunc(at, func(l acp.ToolCallLocation) bool { return l.Path != made }) {
		t.Errorf("the tool calls are at %+v, not at %s", at, made)
	}
}

func TestAnEditorDecidesWhatTheAgentMayDo(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "ask.json", asks))
	for name, c := range map[string]struct {
		permit func(context.Context, acp.RequestPermissionRequest) acp.RequestPermissionOutcome
		made   bool
	}{
		"allowed": {choosing(acp.PermissionOptionKindAllowOnce), true},
		"denied":  {choosing(acp.PermissionOptionKindRejectOnce), false},
		"dismissed": {func(context.Context, acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
			return acp.NewRequestPermissionOutcomeCancelled()
		}, false},
		"what was not offered": {func(context.Context, acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
			return acp.NewRequestPermissionOutcomeSelected("no-such-option")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []acp.RequestPermissionRequest
			e.permit = func(ctx context.Context, req acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
				asked = append(asked, req)
				return c.permit(ctx, req)
			}
			id, dir := e.session()
			if stop := e.say(id, "go"); stop != acp.StopReasonEndTurn {
				t.Errorf("stopped because of %s", stop)
			}
			if len(asked) != 1 || asked[0].SessionId != id || asked[0].ToolCall.Title == nil {
				t.Errorf("asked was %+v", asked)
			}
			if _, err := os.Stat(filepath.Join(dir, "asked.txt")); (err == nil) != c.made {
				t.Errorf("the file is there: %v", err == nil)
			}
		})
	}
}

func TestAnEditorCancelsAndGoesOn(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[
		{"when":"sleep","steps":[{"run":["sleep","600"]},{"text":"awake"}]},
		{"when":"ask","steps":[{"ask":{"write":{"path":"asked.txt","content":"x"}}}]},
		{"steps":[{"text":"turn {{turn}}"}]}
	]}`))
	id, dir := e.session()
	ended := e.saying(id, "sleep")
	e.await(id, "the command", running)
	if err := e.Cancel(e.ctx(), acp.CancelNotification{SessionId: id}); err != nil {
		t.Fatal(err)
	}
	if stop := ended(); stop != acp.StopReasonCancelled {
		t.Errorf("stopped because of %s", stop)
	}
	// Cancelling a prompt answers its pending permission request.
	asked, withdrawn := make(chan struct{}), make(chan struct{})
	e.permit = func(ctx context.Context, _ acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
		close(asked)
		<-ctx.Done()
		close(withdrawn)
		return acp.NewRequestPermissionOutcomeCancelled()
	}
	ended = e.saying(id, "ask")
	<-asked
	if err := e.Cancel(e.ctx(), acp.CancelNotification{SessionId: id}); err != nil {
		t.Fatal(err)
	}
	if stop := ended(); stop != acp.StopReasonCancelled {
		t.Errorf("stopped because of %s", stop)
	}
	<-withdrawn
	if _, err := os.Stat(filepath.Join(dir, "asked.txt")); err == nil {
		t.Error("the file was written")
	}
	if err := e.Cancel(e.ctx(), acp.CancelNotification{SessionId: id}); err != nil { // no prompt
		t.Fatal(err)
	}
	if stop := e.say(id, "again"); stop != acp.StopReasonEndTurn || !strings.HasSuffix(e.text(id), "turn 3") {
		t.Errorf("stopped because of %s; the agent said %q", stop, e.text(id))
	}
}

func TestAnEditorHasSeveralSessionsAtOnce(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[
		{"text":"{{prompt}}{{history}}"},{"ask":{"write":{"path":"{{prompt}}","content":"x"}}}]}]}`))
	// Both sessions ask before either gets an answer: they do not wait for each other.
	var unasked sync.WaitGroup
	unasked.Add(2)
	e.permit = func(ctx context.Context, req acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
		unasked.Done()
		unasked.Wait()
		return choosing(acp.PermissionOptionKindAllowOnce)(ctx, req)
	}
	one, first := e.session()
	two, second := e.session()
	endOne, endTwo := e.saying(one, "one"), e.saying(two, "two")
	if a, b := endOne(), endTwo(); a != acp.StopReasonEndTurn || b != acp.StopReasonEndTurn {
		t.Errorf("stopped because of %s and %s", a, b)
	}
	for name, c := range map[string]struct {
		id  acp.SessionId
		dir string
	}{"one": {one, first}, "two": {two, second}} {
		found, err := filepath.Glob(filepath.Join(c.dir, "*"))
		if text := e.text(c.id); text != name || err != nil || !slices.Equal(found, []string{filepath.Join(c.dir, name)}) {
			t.Errorf("%s said %q, and made %q", name, text, found)
		}
	}
	if _, err := e.CloseSession(e.ctx(), acp.CloseSessionRequest{SessionId: one}); err != nil {
		t.Error(err)
	}
	checkNobodyWorksIn(t, first)
}

func TestAnEditorChoosesModeAndModel(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json",
		`{"turns":[{"steps":[{"ask":{"write":{"path":"asked.txt","content":"x"}}},{"text":"{{model}}"}]}]}`))
	e.permit = func(context.Context, acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
		t.Error("the agent asked")
		return acp.NewRequestPermissionOutcomeCancelled()
	}
	for name, ready := range map[string]bool{"before the sandbox": false, "with a sandbox": true} {
		id, dir := e.session()
		if ready {
			if _, err := e.SetSessionMode(e.ctx(), acp.SetSessionModeRequest{SessionId: id, ModeId: "bypassPermissions"}); err != nil {
				t.Fatal(err)
			}
			e.say(id, "go")
		}
		if _, err := e.SetSessionMode(e.ctx(), acp.SetSessionModeRequest{SessionId: id, ModeId: "acceptEdits"}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.UnstableSetSessionModel(e.ctx(), acp.UnstableSetSessionModelRequest{SessionId: id, ModelId: "larger"}); err != nil {
			t.Fatal(err)
		}
		e.say(id, "go")
		if text := e.text(id); !strings.HasSuffix(text, "larger") {
			t.Errorf("%s: the agent said %q", name, text)
		}
		if _, err := os.Stat(filepath.Join(dir, "asked.txt")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAServerWithLimitsKnowsNoModes(t *testing.T) {
	for deny, n := range map[string]int{"": 3, "Bash": 0} {
		var limits permission.Rules
		if deny != "" {
			limits.Deny = []string{deny}
		}
		if modes := modesOf(environment.Config{PermissionLimits: limits})("script"); len(modes) != n {
			t.Errorf("with %q denied: %q", deny, modes)
		}
	}
}

// Where permissions decide, each choice of a mode would fail: none is offered. The model can still be chosen.
func TestAnEditorChoosesNoModeWherePermissionsDecide(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"text":"x"}]}]}`), "--deny", "Bash(rm *)", "--model", "small")
	dir := e.folder()
	made, err := e.NewSession(e.ctx(), acp.NewSessionRequest{Cwd: dir, McpServers: []acp.McpServer{}})
	if err != nil {
		t.Fatal(err)
	}
	e.say(made.SessionId, "go")
	loaded, err := e.LoadSession(e.ctx(), acp.LoadSessionRequest{SessionId: made.SessionId, Cwd: dir, McpServers: []acp.McpServer{}})
	if err != nil {
		t.Fatal(err)
	}
	for name, modes := range map[string]*acp.SessionModeState{"new": made.Modes, "loaded": loaded.Modes} {
		if modes != nil {
			t.Errorf("%s: the modes are %+v", name, modes)
		}
	}
	for _, o := range slices.Concat(made.ConfigOptions, loaded.ConfigOptions) {
		if o.Select != nil && o.Select.Id == "mode" {
			t.Errorf("it offers %+v", o.Select)
		}
	}
	if _, err := e.SetSessionMode(e.ctx(), acp.SetSessionModeRequest{SessionId: made.SessionId, ModeId: "acceptEdits"}); err == nil ||
		!strings.Contains(err.Error(), "permissions decide instead of the agent's mode") {
		t.Errorf("the mode was set: %v", err)
	}
}

func TestNothingIsLeftWhenTheEditorGoes(t *testing.T) {
	for name, leave := range map[string]func(e *editor) error{
		"it closes the pipe": func(e *editor) error { return e.end() },
		"it interrupts": func(e *editor) error {
			if err := e.cmd.Process.Signal(os.Interrupt); err != nil {
				return err
			}
			<-e.Done()
			err := e.end()
			if code := e.cmd.ProcessState.ExitCode(); code != exitInterrupted {
				return errors.Join(errors.New("another exit status"), err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t)
			e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"run":["sleep","600"]}]}]}`))
			for range 2 {
				id, _ := e.session()
				go func() {
					// The result depends on what is closed first.
					_, _ = e.Prompt(t.Context(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("go")}})
				}()
				e.await(id, "the command", running)
			}
			if err := leave(e); err != nil {
				t.Errorf("%v\n%s", err, e.diagnostics())
			}
		})
	}
}

func TestTheEditorsFolderIsNotReadAsAWhole(t *testing.T) {
	alone(t)
	e := startEditor(t)
	id, dir := e.session()
	large := file(t, "large", "")
	if err := os.Truncate(large, 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(large, filepath.Join(dir, "large")); err != nil {
		t.Fatal(err)
	}
	if stop := e.say(id, "go"); stop != acp.StopReasonEndTurn {
		t.Errorf("stopped because of %s", stop)
	}
}

func TestEventsWithoutAProtocolMessageAreLogged(t *testing.T) {
	alone(t)
	e := startEditor(t, "--verbose", "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"print":"no JSON at all"},{"text":"fine"}]}]}`))
	id, _ := e.session()
	e.say(id, "go")
	if err := e.end(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"no JSON at all", "query_completed", string(id)} {
		if !strings.Contains(e.diagnostics(), want) {
			t.Errorf("the log lacks %q:\n%s", want, e.diagnostics())
		}
	}
	if e.text(id) != "fine" {
		t.Errorf("the agent said %q", e.text(id))
	}
}
