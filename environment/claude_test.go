package environment

import (
	"bytes"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestClaudeCodeWorksInEverySandbox runs the real agent with a scripted model, on a machine that
// has it and in an image that is built for it. The tests of envctl run it at Modal.
func TestClaudeCodeWorksInEverySandbox(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Sandbox: sandbox(t), Agent: Agent{Name: "claude", Command: []string{testagents.Claude(t)}}}
		agentWorks(t, claudeWith(cfg), "127.0.0.1:0", claudeVariables)
	})
	for name, user := range map[string]string{"docker as root": "", "docker as a user": "tester"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := inContainer(t, testdocker.Node(t))
			cfg.Sandbox.Network = "" // so that the agent reaches the model
			cfg.Sandbox.User = user
			agentWorks(t, claudeWith(cfg), testdocker.Gateway(t)+":0", claudeVariables)
		})
	}
}

func claudeWith(cfg Config) Config {
	cfg.Agent.PermissionMode = "bypassPermissions" // the program refuses it for root
	return cfg
}

func claudeVariables(url string) map[string]string {
	return map[string]string{"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key", "CLAUDE_CODE_MAX_RETRIES": "1"}
}

// agentWorks makes a real agent write a file and run a command as its user, and checks that the
// agent remembers both in another process and in another sandbox. variables returns the
// variables that point the agent to the model at a URL.
func agentWorks(t *testing.T, cfg Config, model string, variables func(url string) map[string]string) {
	t.Helper()
	api, err := llmapi.Start(t.Context(), llmapi.Config{Addr: model})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg.Agent.Env = variables(api.URL)
	env := create(t, cfg)
	ask := func(env *Environment, prompt string) (text string, done []runnerscripts.ToolStatus) {
		t.Helper()
		events, err := collect(t.Context(), env, Query{Prompt: prompt})
		if err != nil {
			t.Fatalf("%s: %v", prompt, err)
		}
		for _, ev := range events {
			text += ev.Text()
			if call, err := runnerscripts.Payload[runnerscripts.ToolCall](ev); err == nil && ev.Type == runnerscripts.TypeToolCallUpdate {
				done = append(done, call.Status)
			}
		}
		return text, done
	}
	text, done := ask(env, "please write-file `notes.txt`")
	if !strings.Contains(text, "The file is written.") || len(done) == 0 || done[len(done)-1] != runnerscripts.ToolCompleted {
		t.Errorf("it said %q, its tool call was %v", text, done)
	}
	ask(env, "now run-command `pwd > where.txt`")
	where, err := primitives.ReadFile(t.Context(), env.Primitive(), "where.txt", 1000)
	if workspace := env.Primitive().Paths().Workspace; err != nil || strings.TrimSpace(string(where)) != workspace {
		t.Errorf("the command worked in %q, %v; want %s", where, err, workspace)
	}
	var patch bytes.Buffer
	if err := env.Patch(t.Context(), &patch); err != nil || !strings.Contains(patch.String(), "+hello from the scripted model\n") {
		t.Errorf("the patch is %q, %v", patch.String(), err)
	}
	transcript, err := env.ReadTranscript(t.Context())
	if err != nil || !strings.Contains(transcript.Main, "write-file") {
		t.Errorf("the transcript is %q, %v", transcript.Main, err)
	}

	// The agent remembers in another process, and in another sandbox.
	if _, err := env.PrepareSession(t.Context(), Setup{}); err != nil {
		t.Fatal(err)
	}
	if text, _ := ask(env, "remember"); !strings.Contains(text, "write-file `notes.txt`") {
		t.Errorf("another process remembers %q", text)
	}
	cfg.SessionID = env.SessionID()
	other := create(t, cfg)
	if _, err := other.PrepareSession(t.Context(), Setup{Transcript: &transcript}); err != nil {
		t.Fatal(err)
	}
	if text, _ := ask(other, "remember"); !strings.Contains(text, "write-file `notes.txt`") {
		t.Errorf("in another sandbox it remembers %q", text)
	}
}
