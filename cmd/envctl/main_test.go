package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	testscript.Main(tests{m}, programs)
}

// programs are the commands of scripts.
var programs = map[string]func(){
	"envctl": main, "asking-agent": askingAgent, "store-session": storeSession, "stubborn": stubborn, "make-socket": makeSocket,
}

// stubborn is a program that ends at no signal, as envctl where something hangs.
func stubborn() {
	ctx, _ := interrupts(time.Millisecond, exitUnended, os.Interrupt)
	fmt.Println("begun")
	<-ctx.Done()
	fmt.Println("interrupted")
	select {}
}

// tests wraps testing.M: its Run also fails if the tests leave anything in an engine or on a
// server.
type tests struct{ *testing.M }

func (m tests) Run() int { return testmodal.Check(testdocker.Main(m.M)) }

// environ is the environment before a test changes it: HOME has the build cache.
var environ = os.Environ()

// withoutRaces returns the folder of the programs of scripts, which have no race detector. A script runs some hundred
// processes one after the other, which the detector makes three times as expensive. What does much at once has it: whatever
// calls Execute or runs on a terminal, and the servers of TestScriptsOverAServer and of clusters.
var withoutRaces = sync.OnceValues(func() (dir string, err error) {
	path, err := exec.LookPath("envctl")
	if err != nil {
		return "", err
	}
	dir = filepath.Dir(path) // testscript removes it
	if info, _ := debug.ReadBuildInfo(); !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return dir, nil
	}
	dir = filepath.Join(dir, "plain")
	envctl := filepath.Join(dir, "envctl")
	cmd := exec.CommandContext(context.Background(), "go", "test", "-c", "-trimpath", "-vet=off", "-ldflags=-s -w", "-o", envctl, ".")
	cmd.Env = environ
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build envctl: %w: %s", err, out)
	}
	for name := range programs {
		if name != "envctl" {
			err = errors.Join(err, os.Link(envctl, filepath.Join(dir, name)))
		}
	}
	return dir, err
})

// TestScripts runs the scripts in testdata/script, each with its own sandboxes, and checks that
// no sandbox and no process is left.
func TestScripts(t *testing.T) {
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	runScripts(t, testscript.Params{Dir: "testdata/script"}, map[string]string{
		"ANTHROPIC_BASE_URL": startModel(t, ""), "REPOSITORY": repository,
	}, "sandbox: local\n")
}

// startModel starts a scripted model at an address and returns its URL.
func startModel(t *testing.T, addr string) string {
	t.Helper()
	return startedModel(t, addr).URL
}

func startedModel(t *testing.T, addr string) *llmapi.Server {
	t.Helper()
	model, err := llmapi.Start(t.Context(), llmapi.Config{Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	})
	return model
}

// ofServer returns the condition [server] of scripts that run over a server, too.
func ofServer(is bool) func(string) (bool, error) {
	return func(cond string) (bool, error) {
		if cond != "server" {
			return false, fmt.Errorf("there is no condition %q", cond)
		}
		return is, nil
	}
}

// runScripts runs scripts with the given variables and the configuration file sandbox.yaml.
func runScripts(t *testing.T, p testscript.Params, vars map[string]string, config string) {
	t.Helper()
	runner, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := withoutRaces()
	if err != nil {
		t.Fatal(err)
	}
	claude, busybox := testagents.Claude(t), testdocker.Busybox(t)
	p.RequireExplicitExec, p.RequireUniqueNames = true, true
	more := p.Setup
	p.Setup = func(e *testscript.Env) error {
		e.Setenv("HOME", e.WorkDir)
		e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, ".cache"))
		e.Setenv(bundle.ExplicitVariable, runner)
		e.Setenv("ENVCTL_DIR", dir)
		e.Setenv("PATH", strings.Join([]string{dir, e.Getenv("PATH"), filepath.Dir(claude)}, string(os.PathListSeparator)))
		// Otherwise the race detector sleeps for a second at every exit.
		e.Setenv("GORACE", "atexit_sleep_ms=0")
		// A variable that is not passed on must not reach a sandbox.
		e.Setenv("HOST_SECRET", "hunter2")
		for key, value := range vars {
			e.Setenv(key, value)
		}
		e.Defer(func() { checkNothingLeft(t, e.WorkDir) })
		if err := containers(e, busybox); err != nil {
			return err
		}
		if err := os.CopyFS(filepath.Join(e.WorkDir, "executor"), os.DirFS("../../examples/executor")); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(e.WorkDir, "sandbox.yaml"), []byte(config), 0o600); err != nil || more == nil {
			return err
		}
		return more(e)
	}
	if p.Condition == nil {
		p.Condition = ofServer(false)
	}
	p.Cmds = map[string]func(*testscript.TestScript, bool, []string){"seqs": checkSeqs}
	testscript.Run(t, p)
}

// containers writes configurations of sandboxes in containers: docker.yaml, and named.yaml for
// the sandbox with the ID $BOX.
func containers(e *testscript.Env, image string) error {
	box := fmt.Sprintf("agentenv-test-%d-%s", os.Getpid(), filepath.Base(e.WorkDir))
	e.Setenv("BOX", box)
	e.Setenv("IMAGE", image)
	e.Setenv("DOCKER_HOST", os.Getenv("DOCKER_HOST"))
	for file, name := range map[string]string{"docker.yaml": "", "named.yaml": box} {
		config, err := json.Marshal(map[string]any{"sandbox": environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: image, Network: "none", Name: name, Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: &docker.Provider{Pull: docker.PullNever}}})
		if err == nil {
			err = os.WriteFile(filepath.Join(e.WorkDir, file), config, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkNothingLeft fails if a sandbox is left, or a process whose working directory is in the
// folder.
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

// checkSeqs implements the script command "seqs FILE [on]". It checks that the lines of FILE are
// numbered without a gap and that each has a type. The first number is 1; with on it is a later
// one, as for a session that goes on.
func checkSeqs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 || len(args) > 2 {
		ts.Fatalf("usage: seqs FILE [on]")
	}
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	first := 1
	if len(args) == 2 {
		if _, err := fmt.Sscanf(lines[0], `{"seq":%d,`, &first); err != nil || first == 1 {
			ts.Fatalf("line 1 is %.80s", lines[0])
		}
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprintf(`{"seq":%d,"type":"`, first+i)) {
			ts.Fatalf("line %d is %.80s", i+1, line)
		}
	}
	if len(lines) < 5 {
		ts.Fatalf("only %d events", len(lines))
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var check func(cmd *cobra.Command, path ...string)
	check = func(cmd *cobra.Command, path ...string) {
		for _, sub := range cmd.Commands() {
			check(sub, append(slices.Clone(path), sub.Name())...)
		}
		if len(path) == 0 {
			return
		}
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s lacks a description or an example", path)
		}
		for line := range strings.Lines(cmd.Long) {
			if len(line) > 100 {
				t.Errorf("%s --help has a line of %d characters: %s", path, len(line), line)
			}
		}
		var out bytes.Buffer
		if code := Execute(t.Context(), nil, &out, &out, append(path, "--help")); code != exitOK {
			t.Errorf("%s --help exits with %d", path, code)
		}
		if !strings.Contains(out.String(), "Examples:") {
			t.Errorf("%s --help shows no example", path)
		}
	}
	check((&app{}).newRootCmd())
}
