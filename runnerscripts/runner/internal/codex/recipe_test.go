package codex

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// npm installs the pinned package as the recipe does: a script for Node, and the program in the
// platform's package beside or below it.
func TestProgramIsStartedWithoutTheScriptThatNeedsNode(t *testing.T) {
	script, err := filepath.Abs("../../../../e2e/agents/node_modules/.bin/codex")
	if err != nil {
		t.Fatal(err)
	}
	argv, err := program(runnerscripts.Agent{Command: []string{script, "x"}}, nil)
	if want := testagents.Codex(t); err != nil || len(argv) != 2 || argv[0] != want || argv[1] != "x" {
		t.Errorf("started as %q, %v; the program is %q", argv, err, want)
	}
}

func TestProgramInAPackageBelowIsFound(t *testing.T) {
	testneed.Require(t, runtime.GOOS == "linux" && runtime.GOARCH == "amd64", "run this on Linux, amd64: the folders below are that platform's")
	dir := t.TempDir()
	script := filepath.Join(dir, "codex", "bin", "codex.js")
	exe := filepath.Join(dir, "codex", "node_modules", "@openai", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
	agenttest.WriteFile(t, script, "#!/usr/bin/env node\n")
	if got := native(script); got != script {
		t.Errorf("without the program: %q", got)
	}
	agenttest.WriteFile(t, exe, "")
	if got := native(script); got != exe {
		t.Errorf("with the program: %q", got)
	}
	if got := native(exe); got != exe {
		t.Errorf("the program itself: %q", got)
	}
}
