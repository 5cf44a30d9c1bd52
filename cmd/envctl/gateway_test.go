package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// TestRunWithoutANetworkNeedsNoKeyInside runs an agent in a container without a network, with the
// key and the address of its model in the environment of envctl alone.
func TestRunWithoutANetworkNeedsNoKeyInside(t *testing.T) {
	alone(t)
	t.Setenv("ANTHROPIC_API_KEY", "test-key")
	t.Setenv("ANTHROPIC_BASE_URL", startModel(t, "127.0.0.1:0")) // unreachable from containers
	executor, err := os.ReadFile("../../environment/testdata/executor.mjs")
	if err != nil {
		t.Fatal(err)
	}
	config := configFile(t, map[string]any{
		"sandbox":   environment.Sandbox{Spec: primitives.Spec{Image: testdocker.Node(t), Labels: testdocker.Labels(), Grace: 10 * time.Second}, Type: "docker", Provider: &docker.Provider{Pull: docker.PullNever}},
		"agent":     map[string]any{"name": "command", "command": []string{"node", "executor.mjs"}},
		"workspace": []any{map[string]any{"files": []any{map[string]any{"path": "executor.mjs", "content": string(executor)}}}},
	})
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{nil, "The file is written."},
		// Variables given with -e take precedence.
		{[]string{"-e", "ANTHROPIC_API_KEY=of-the-user", "-e", "ANTHROPIC_BASE_URL=http://127.0.0.1:9"}, "fetch failed"},
	} {
		args := append([]string{"run", "--config", config, "--network", "none", "please write-file `notes.txt`"}, c.flags...)
		out, err := exec.CommandContext(t.Context(), "envctl", args...).CombinedOutput()
		if (err == nil) != (c.flags == nil) || !strings.Contains(string(out), c.want) {
			t.Errorf("%v: %v: %s", c.flags, err, out)
		}
	}
}
