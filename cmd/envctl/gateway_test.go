package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// TestRunWithoutANetworkNeedsNoKeyInside runs Claude Code in a container without a network,
// with the key and the address of its model in the environment of envctl alone.
func TestRunWithoutANetworkNeedsNoKeyInside(t *testing.T) {
	alone(t)
	t.Setenv("ANTHROPIC_API_KEY", "test-key")
	t.Setenv("ANTHROPIC_BASE_URL", startModel(t, "127.0.0.1:0")) // unreachable from containers
	config := configFile(t, map[string]any{"sandbox": environment.Sandbox{
		Spec: primitives.Spec{Image: testdocker.Node(t), Labels: testdocker.Labels(), Grace: 10 * time.Second}, Type: "docker", Docker: docker.Provider{Pull: docker.PullNever},
	}})
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{nil, "Hello from the scripted model"},
		// Variables given with -e take precedence.
		{[]string{"-e", "ANTHROPIC_API_KEY=of-the-user", "-e", "ANTHROPIC_BASE_URL=http://127.0.0.1:9", "-e", "CLAUDE_CODE_MAX_RETRIES=0"}, ""},
	} {
		args := append([]string{"run", "--config", config, "--network", "none", "--agent", "claude", "please plain-text"}, c.flags...)
		out, err := exec.CommandContext(t.Context(), "envctl", args...).CombinedOutput()
		if (err == nil) != (c.want != "") || !strings.Contains(string(out), c.want) {
			t.Errorf("%v: %v: %s", c.flags, err, out)
		}
	}
}
