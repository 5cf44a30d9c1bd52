package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentenv-dev/agentenv/internal/llmapi"
	"github.com/agentenv-dev/agentenv/internal/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"envctl": main})
}

// TestScripts runs the scripts in testdata/script, each with sandboxes of its own
// and a check that it left none, and no process, behind.
func TestScripts(t *testing.T) {
	runner, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	model, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	claude := testagents.Claude(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, ".cache"))
			e.Setenv(bundle.ExplicitVariable, runner)
			e.Setenv("ANTHROPIC_BASE_URL", model.URL)
			dir, _, _ := strings.Cut(e.Getenv("PATH"), string(os.PathListSeparator))
			e.Setenv("ENVCTL_DIR", dir)
			e.Setenv("PATH", e.Getenv("PATH")+string(os.PathListSeparator)+filepath.Dir(claude))
			// Else the race detector rests for a second at every exit.
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			// What nobody passes on must not arrive in a sandbox.
			e.Setenv("HOST_SECRET", "hunter2")
			e.Defer(func() { checkNothingLeft(t, e.WorkDir) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"seqs": checkSeqs},
	})
}

// checkNothingLeft looks for sandboxes and for processes that work in the
// script's folder.
func checkNothingLeft(t *testing.T, dir string) {
	left, err := os.ReadDir(filepath.Join(dir, ".cache", "agentenv", "local"))
	if err == nil && len(left) > 0 {
		t.Errorf("%s: %d sandboxes are left, the first is %s", dir, len(left), left[0].Name())
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Error(err)
	}
	for _, p := range procs {
		if at, err := os.Readlink(p); err == nil && strings.HasPrefix(at, dir+"/.cache") {
			t.Errorf("process %s is left in %s", p, at)
		}
	}
}

// checkSeqs: seqs FILE checks that the lines of FILE are numbered from 1 without
// a gap and have a type each.
func checkSeqs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: seqs FILE")
	}
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprintf(`{"seq":%d,"type":"`, i+1)) {
			ts.Fatalf("line %d is %.80s", i+1, line)
		}
	}
	if len(lines) < 5 {
		ts.Fatalf("only %d events", len(lines))
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	root := (&app{}).newRootCmd()
	for _, cmd := range root.Commands() {
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s lacks a description or an example", cmd.Name())
		}
		var out bytes.Buffer
		if code := Execute(t.Context(), nil, &out, &out, []string{cmd.Name(), "--help"}); code != exitOK {
			t.Errorf("%s --help exits with %d", cmd.Name(), code)
		}
		if !strings.Contains(out.String(), "Examples:") {
			t.Errorf("%s --help shows no example", cmd.Name())
		}
	}
}
