package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

var update = flag.Bool("update", false, "write the golden files anew")

// scenario is a query whose events are the same with every agent.
type scenario struct {
	name, prompt string
	decision     runnerscripts.PermissionKind // the answer to permission requests
}

func scenarios() []scenario {
	return []scenario{
		{name: "text", prompt: "please plain-text"},
		{name: "thought", prompt: "please think"},
		{name: "write", prompt: "please write-file `notes.txt`", decision: runnerscripts.AllowOnce},
		{name: "write_denied", prompt: "please write-file `denied.txt`", decision: runnerscripts.RejectOnce},
		{name: "command", prompt: "please run-command `echo made > made.txt`", decision: runnerscripts.AllowOnce},
		{name: "failure", prompt: "please http-400"},
	}
}

// TestTheSameScenarioGivesTheSameConversation compares the events of each agent with one golden
// file for all agents, both live and from their transcripts. Then the API repeats the agent's key.
func TestTheSameScenarioGivesTheSameConversation(t *testing.T) {
	api := model(t, "")
	for _, a := range realAgents(t) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			cfg := a.config(api.URL)
			cfg.Sandbox = environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}}
			cfg.OnPermission, cfg.Raw = environment.AnswerLater, true
			env, err := environment.Create(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := env.Close(); err != nil {
					t.Error(err)
				}
			}()
			var live []runnerscripts.Event
			for _, s := range scenarios() {
				events := play(t, env, s)
				live = append(live, events...)
				golden(t, s.name, normal(t, env, events))
			}
			var stored []runnerscripts.Event
			for ev, err := range env.ReadConversation(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				stored = append(stored, ev)
			}
			if a, b := normal(t, env, live), normal(t, env, stored); withoutEnds(a) != withoutEnds(b) {
				t.Errorf("the transcript differs\nlive:\n%s\ntranscript:\n%s", a, b)
			}
			matchesSchema(t, env, a.name)
			repeatsNoKey(t, env, a.name, api.URL)
		})
	}
}

// play runs a query to its end.
func play(t *testing.T, env *environment.Environment, s scenario) []runnerscripts.Event {
	t.Helper()
	var events []runnerscripts.Event
	for ev, err := range env.ExecuteQuery(t.Context(), environment.Query{Prompt: s.prompt}) {
		if err != nil {
			if s.name == "failure" {
				break
			}
			t.Fatalf("%s: %v", s.name, err)
		}
		events = append(events, ev)
		if ev.Type != runnerscripts.TypePermissionRequest {
			continue
		}
		req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
		if err == nil {
			err = env.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: s.decision})
		}
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	return events
}

// normal returns the events in a form that all agents have in common: what was said, what was
// done to which file, and how the query ended.
func normal(t *testing.T, env *environment.Environment, events []runnerscripts.Event) string {
	t.Helper()
	var b strings.Builder
	asked := map[string]bool{}
	for _, ev := range events {
		if req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev); err == nil && ev.Type == runnerscripts.TypePermissionRequest {
			asked[req.ToolCall.ToolCallID] = true
		}
	}
	c := agenttest.Fold(t, events)
	for _, block := range c.Blocks {
		switch block.Kind {
		case session.BlockUser:
			fmt.Fprintf(&b, "user: %s\n", block.Text)
		case session.BlockAgent:
			fmt.Fprintf(&b, "agent: %s\n", strings.TrimSpace(block.Text))
		case session.BlockThought:
			fmt.Fprintf(&b, "thought: %s\n", strings.TrimSpace(block.Text))
		case session.BlockTool:
			b.WriteString(toolLine(env, *block.Tool, asked[block.Tool.ToolCallID]))
		case session.BlockPlan, session.BlockError:
			fmt.Fprintf(&b, "%s\n", block.Kind)
		}
	}
	for _, q := range c.Queries {
		switch {
		case q.Failure != nil:
			fmt.Fprintf(&b, "failed: %s %d\n", q.Failure.Code, q.Failure.HTTPStatus)
		default:
			u := q.Usage
			fmt.Fprintf(&b, "end: %s, tokens counted: %v\n", q.StopReason, u.InputTokens+u.CacheReadTokens > 0 && u.OutputTokens > 0)
		}
	}
	return b.String()
}

func toolLine(env *environment.Environment, tool runnerscripts.ToolCall, asked bool) string {
	var places []string
	for _, l := range tool.Locations {
		rel, err := filepath.Rel(env.Primitive().Paths().Workspace, l.Path)
		if err != nil {
			rel = l.Path
		}
		places = append(places, rel)
	}
	slices.Sort(places)
	line := fmt.Sprintf("tool: %s %s %v", tool.Kind, tool.Status, slices.Compact(places))
	if asked {
		line += " asked"
	}
	for _, content := range tool.Content {
		if content.Type == "diff" && tool.Status == runnerscripts.ToolCompleted {
			line += fmt.Sprintf(" diff %v %q", content.OldText != nil && *content.OldText != "", strings.TrimSpace(content.NewText))
		}
	}
	return line + "\n"
}

// Transcripts do not contain how queries ended, what permission was requested, and, for Gemini,
// what a denied tool would have done.
var (
	endLine    = regexp.MustCompile(`(?m)^(end|failed): .*\n|^error\n|( asked)`)
	deniedTool = regexp.MustCompile(`(?m)^tool: \w* failed .*$`)
)

func withoutEnds(text string) string {
	return deniedTool.ReplaceAllString(endLine.ReplaceAllString(text, ""), "tool: failed")
}

// golden compares a text with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: it is\n%swant\n%s", name, got, want)
	}
}
