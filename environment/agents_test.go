package environment

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// programs returns a sandbox whose PATH has only these shell scripts, by name.
func programs(t *testing.T, scripts map[string]string) Sandbox {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	box := sandbox(t)
	box.Env = map[string]string{"PATH": dir}
	return box
}

func TestTheVersionOfAnAgentIsWhatItsProgramSays(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Sandbox: programs(t, map[string]string{
		"words": "echo 'words-cli 1.2.3-beta (of today)'\n", "other": "echo unknown\n", "broken": "echo 'no libc' >&2; exit 3\n",
	})})
	for program, want := range map[string]string{"words": "1.2.3-beta", "other": "unknown"} {
		if got, err := env.AgentVersion(t.Context(), AgentInfo{Agent: "a", Program: program}); got != want || err != nil {
			t.Errorf("%s: %q, %v", program, got, err)
		}
	}
	if _, err := env.AgentVersion(t.Context(), AgentInfo{Agent: "a", Program: "nosuch"}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "a is not in the sandbox") || !strings.Contains(err.Error(), "; install it") {
		t.Errorf("not installed: %v", err)
	}
	if _, err := env.AgentVersion(t.Context(), AgentInfo{Agent: "a", Program: "broken"}); err == nil || !strings.Contains(err.Error(), "no libc") {
		t.Errorf("broken: %v", err)
	}
	if _, err := env.AgentVersion(t.Context(), AgentInfo{Agent: "a"}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("without a program: %v", err)
	}
}

func TestNothingIsInstalledOnThisMachine(t *testing.T) {
	t.Parallel()
	box := programs(t, map[string]string{"npm": "echo ran > npm-ran\n", "mkdir": ""})
	a := AgentInfo{Agent: "a", Program: "nosuch", Version: "1", NPM: []string{"a@1"}}
	made := create(t, Config{Sandbox: box})
	p, err := local.New(t.Context(), local.Config{Root: rootOf(box)})
	if err != nil {
		t.Fatal(err)
	}
	given, err := New(t.Context(), p, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string]*Environment{"made by Create": made, "the caller's": given} {
		if err := env.InstallAgent(t.Context(), a); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "a@1") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(env.Primitive().Paths().Workspace, "npm-ran")); err == nil {
			t.Errorf("%s: npm was run", name)
		}
	}
	_, err = p.Terminate(t.Context())
	if err := errors.Join(given.Close(), err, p.Close()); err != nil {
		t.Error(err)
	}
}

// TestAnAgentIsInstalledInALiveSandbox uses a container with a fake npm, which creates a program
// from its arguments. So the test sees what the recipe installs.
func TestAnAgentIsInstalledInALiveSandbox(t *testing.T) {
	t.Parallel()
	cfg := inContainer(t, base(t, testdocker.FakeNPM))
	cfg.Agent = Agent{}
	env := create(t, cfg)
	claude := AgentInfo{Agent: "claude", Program: "claude", Version: "2.1.329", Debian: []string{"git"}, NPM: []string{"@anthropic-ai/claude-code@2.1.329"}}
	if _, err := env.AgentVersion(t.Context(), claude); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	for range 2 { // the second call does nothing
		if err := env.InstallAgent(t.Context(), claude); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := env.AgentVersion(t.Context(), claude); err != nil || v != "2.1.329" {
		t.Errorf("it is %q, %v", v, err)
	}
	other := AgentInfo{Agent: "other", Program: "no-such-program", Version: "1", Debian: claude.Debian, NPM: claude.NPM}
	if err := env.InstallAgent(t.Context(), AgentInfo{Agent: "script", Version: "1"}); err != nil {
		t.Errorf("one that needs nothing: %v", err)
	}
	bare := create(t, Config{Sandbox: container(t)})
	if err := bare.InstallAgent(t.Context(), other); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "lacks apt-get and npm") {
		t.Errorf("without npm: %v", err)
	}
}

// TestTheRealNPMInstallsAgents installs agents from the Debian and npm registries, which the setup
// of the tests needs too. The tests of envctl do so with Claude Code, in an image.
func TestTheRealNPMInstallsAgents(t *testing.T) {
	t.Parallel()
	cfg := inContainer(t, testdocker.Node(t))
	cfg.Agent, cfg.Sandbox.Network = Agent{}, ""
	env := create(t, cfg)
	all, err := Agents(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	installed := 0
	for _, a := range all {
		if !slices.Contains([]string{"codex", "gemini", "opencode"}, a.Agent) {
			continue
		}
		if err := env.InstallAgent(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if v, err := env.AgentVersion(t.Context(), a); err != nil || v != a.Version {
			t.Errorf("%s is %q, %v; want %s", a.Agent, v, err, a.Version)
		}
		installed++
	}
	if installed != 3 {
		t.Errorf("%d agents were installed", installed)
	}
}
