package environment

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// A configuration that no sandbox could run is an error before a sandbox is created.
func TestAnUnknownAgentIsRefusedBeforeASandboxIsMade(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env, err := Create(t.Context(), Config{Sandbox: box, Agent: Agent{Name: "scrpt"}})
		if err == nil {
			t.Fatal(errors.Join(errors.New("no error"), env.Close()))
		}
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
		text := err.Error()
		if !errors.Is(err, ErrConfig) || !ok || failure.Code != runnerscripts.FailUnknownAgent ||
			!strings.HasPrefix(text, `invalid configuration: agent.name: there is no agent "scrpt"; did you mean script? there are: acp, `) {
			t.Errorf("got %v", err)
		}
		if box.Type == "local" {
			if made, err := os.ReadDir(rootOf(box)); err == nil && len(made) > 0 {
				t.Errorf("sandboxes were made: %v", made)
			}
		}
	})
	_, err := New(t.Context(), newBare(t), Config{Agent: Agent{Name: "hal9000"}})
	if !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "did you mean") {
		t.Errorf("in a sandbox of the caller: %v", err)
	}
}

func TestCheckRefusesWhatCreateWouldRefuse(t *testing.T) {
	good := Config{Sandbox: sandbox(t), Agent: Agent{Name: "script"}}
	if err := good.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no type":           func(c *Config) { c.Sandbox.Type = "" },
		"an unknown type":   func(c *Config) { c.Sandbox.Type = "dokcer" },
		"an unknown agent":  func(c *Config) { c.Agent.Name = "hal9000" },
		"no such folder":    func(c *Config) { c.Workspace = []Source{{Folder: &Folder{Path: "/no/such"}}} },
		"no such runner":    func(c *Config) { c.Runner = "/no/such" },
		"a malformed name":  func(c *Config) { c.Name = "a b" },
		"a pool in Create":  func(c *Config) { c.Pool.Max = 1 },
		"an impossible var": func(c *Config) { c.Agent.Env = map[string]string{"A=B": ""} },
	} {
		cfg := good
		spoil(&cfg)
		if err := cfg.Check(t.Context()); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, want ErrConfig", name, err)
		}
	}
}

// attach opens a sandbox again until the end of the test.
func attach(t *testing.T, id string, box Sandbox) *Environment {
	t.Helper()
	env, err := Attach(t.Context(), Config{Sandbox: box}, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return env
}

// keptSandbox creates a sandbox with Keep and closes its environment.
func keptSandbox(t *testing.T, cfg Config) (id string, app string) {
	t.Helper()
	cfg.Sandbox.Keep = true
	env := create(t, cfg)
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), cfg.Sandbox, env.ID()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove: %v", err)
		}
	})
	return env.ID(), env.Primitive().Paths().App
}

func TestAnotherProgramGetsNoChangesOfASandboxThatWasNotKept(t *testing.T) {
	box := sandbox(t)
	owner := create(t, Config{Sandbox: box})
	tree{"new": "1\n"}.write(t, owner.Primitive().Paths().Workspace)
	guest := attach(t, owner.ID(), box)
	if err := guest.Healthy(t.Context()); err != nil {
		t.Errorf("health: %v", err)
	}
	if changes, err := guest.Changes(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("changes: %v and %v, want errors.ErrUnsupported", changes, err)
	}
	if err := guest.Patch(t.Context(), failingWriter{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("patch: %v, want errors.ErrUnsupported", err)
	}
}

func TestTheBeginningOfAWorkspaceIsReadWhenItIsAskedFor(t *testing.T) {
	box := sandbox(t)
	id, app := keptSandbox(t, Config{Sandbox: box})
	if err := os.WriteFile(filepath.Join(app, baselineFile), []byte("this is no archive, whatever its name says"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := attach(t, id, box)
	if err := env.Healthy(t.Context()); err != nil {
		t.Errorf("health: %v", err)
	}
	if changes, err := env.Changes(t.Context()); err == nil {
		t.Errorf("changes since a damaged beginning: %v", changes)
	}
}

func TestRemoveEndsASandboxWhateverItsRecordSays(t *testing.T) {
	box := sandbox(t)
	id, app := keptSandbox(t, Config{Sandbox: box})
	if err := os.WriteFile(filepath.Join(app, noteFile), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(t.Context(), Config{Sandbox: box}, id); err == nil || !strings.Contains(err.Error(), "Remove") {
		t.Errorf("attach: %v, want an error that names Remove", err)
	}
	if err := Remove(t.Context(), box, id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(app); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the sandbox is still there: %v", err)
	}
	if err := Remove(t.Context(), box, id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed again: %v, want fs.ErrNotExist", err)
	}
}

func TestARunnerThatAnotherUserCannotReachIsInstalledAfterAttachingToo(t *testing.T) {
	testneed.Root(t, "only root runs commands as another user")
	binary, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	runner := filepath.Join(private, "envrunner")
	if out, err := exec.CommandContext(t.Context(), "cp", binary, runner).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	root, err := os.MkdirTemp("", "agentenv-test-*") //nolint:usetesting // that of the test is closed to other users
	if err == nil {
		err = os.Chmod(root, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	box := Sandbox{Type: "local", Spec: primitives.Spec{User: "nobody"}, Provider: &local.Provider{Root: root}}
	id, app := keptSandbox(t, Config{Sandbox: box, Agent: Agent{Name: "script"}})
	env, err := Attach(t.Context(), Config{Sandbox: Sandbox{Type: "local", Provider: &local.Provider{Root: root}}, Runner: runner}, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.ReadTranscript(t.Context()); err != nil {
		var script *ScriptError
		t.Errorf("read the transcript: %v (a ScriptError: %t)", err, errors.As(err, &script) && script.Script == runnerscripts.ReadTranscript)
	}
	if found, err := filepath.Glob(path.Join(app, script.RunnerName+"*")); err != nil || len(found) != 1 {
		t.Errorf("runners in the sandbox: %v, %v", found, err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}

func TestRemoveEndsAContainerThatDied(t *testing.T) {
	box := container(t)
	id, _ := keptSandbox(t, Config{Sandbox: box})
	if err := testdocker.Engine(t).ContainerKill(t.Context(), id, "KILL"); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), box, id); err != nil {
		t.Error(err)
	}
	if err := Remove(t.Context(), box, id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed again: %v", err)
	}
}
