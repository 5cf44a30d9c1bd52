package codex

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// If the host's rules deny or ask about reads and commands, Codex has no tool and no input about which it would not
// ask, whatever agent.config says.
func TestNothingIsReadOrRunWithoutAQuestion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Asks = []string{runnerscripts.AsksBash, runnerscripts.AsksRead}
	f.Session.Agent.Config = []byte(`{"features":{"unified_exec_tty":true,"view_image":true},
		"model_providers":{"openai-key":{"request_max_retries":1,"stream_max_retries":1}}}`)
	c := f.start()
	const command = "call-tool `exec_command {\"cmd\":\"touch x\",\"tty\":true}`"
	if asked := f.promptAndAnswer(c, command, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); asked != 0 || f.Exists("x") {
		t.Errorf("a command with a terminal was asked %d times, and has run: %v", asked, f.Exists("x"))
	}
	reqs := f.API.Requests()
	if last := reqs[len(reqs)-1]; !strings.Contains(strings.Join(last.Results, ""), "TTY execution is disabled") || slices.Contains(last.Tools, toolImage) {
		t.Errorf("the results are %q, the tools %q", last.Results, last.Tools)
	}
}
