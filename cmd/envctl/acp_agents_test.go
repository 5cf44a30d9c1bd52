package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// configFile writes a configuration and returns its path.
func configFile(t *testing.T, cfg map[string]any) string {
	t.Helper()
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "config.json", string(data))
}

// TestAnEditorRunsRealAgents runs real agents against a scripted model: each asks the editor
// before it writes a file into its folder, and remembers the conversation. Other agents differ
// from these only in their drivers, which package e2e tests.
func TestAnEditorRunsRealAgents(t *testing.T) {
	for name, agent := range map[string]func(url string) map[string]any{
		"claude": func(url string) map[string]any {
			return map[string]any{
				"name": "claude", "command": []string{testagents.Claude(t)},
				"env": map[string]string{"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"},
			}
		},
		"codex": func(url string) map[string]any {
			return map[string]any{
				"name": "codex", "command": []string{testagents.Codex(t)}, "model": "gpt-5.5",
				"env": map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "test-key"},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t)
			cfg := map[string]any{"sandbox": "local", "agent": agent(startModel(t, ""))}
			e := startEditor(t, "--config", configFile(t, cfg))
			dir := e.folder()
			worksInFolder(t, e, dir)
		})
	}
}

// TestClaudeInAContainerWorksAsTheFoldersOwner runs Claude Code in a container, whose image
// agentenv completes with it.
func TestClaudeInAContainerWorksAsTheFoldersOwner(t *testing.T) {
	testneed.Root(t, "the folder is given to another user")
	alone(t)
	e := startEditor(t, "--config", configFile(t, map[string]any{
		"sandbox": environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: testdocker.Node(t), Labels: testdocker.Labels(), Grace: 10 * time.Second}, Docker: docker.Provider{Pull: docker.PullNever}},
		"agent": map[string]any{
			"name": "claude",
			"env":  map[string]string{"ANTHROPIC_BASE_URL": startModel(t, testdocker.Gateway(t)+":0"), "ANTHROPIC_API_KEY": "test-key"},
		},
	}))
	dir := e.folder()
	if err := os.Chown(dir, 4321, 4321); err != nil {
		t.Fatal(err)
	}
	worksInFolder(t, e, dir)
}

// worksInFolder makes an agent write a file that the editor denies and one that it allows.
func worksInFolder(t *testing.T, e *editor, dir string) {
	t.Helper()
	id := e.begin(dir)
	for name, kind := range map[string]acp.PermissionOptionKind{
		"denied.txt": acp.PermissionOptionKindRejectOnce, "made.txt": acp.PermissionOptionKindAllowOnce,
	} {
		asked := 0
		e.permit = func(ctx context.Context, req acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
			asked++
			return choosing(kind)(ctx, req)
		}
		if stop := e.say(id, "write-file `"+name+"`"); stop != acp.StopReasonEndTurn && kind != acp.PermissionOptionKindRejectOnce {
			t.Errorf("%s: stopped because of %s", name, stop)
		}
		if asked == 0 {
			t.Errorf("%s: nobody was asked", name)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != (kind == acp.PermissionOptionKindAllowOnce) {
			t.Errorf("%s is there: %v", name, err == nil)
		}
	}
	before := len(e.text(id))
	if stop := e.say(id, "plain-text"); stop != acp.StopReasonEndTurn || len(e.text(id)) == before {
		t.Errorf("stopped because of %s and said %q", stop, e.text(id)[before:])
	}
}

func TestModesOfAnEditorAreThoseOfTheAgent(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"opencode": "build acceptEdits auto plan docs review", "claude": "default acceptEdits plan dontAsk", "acp": "",
	} {
		config := []byte(`{"agent":{"review":{},"docs":{"mode":"primary"},"sub":{"mode":"subagent"}}}`)
		if got := strings.Join(agentModes(runnerscripts.Agent{Name: name, Config: config}), " "); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
