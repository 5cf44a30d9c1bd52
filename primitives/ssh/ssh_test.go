package ssh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/internal/test/testssh"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(childVariable); config != "" {
		beKilled(config)
	}
	testleak.Main(m)
}

// config returns the configuration for sandboxes below a folder of the machine.
func config(t *testing.T, root string) ssh.Config {
	t.Helper()
	runner, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	found := func(context.Context, string, string) (string, error) { return runner, nil }
	return ssh.Config{Provider: ssh.Provider{Host: testssh.Alias, Root: root, Runner: found}, Runner: runner}
}

// open creates a sandbox that ends with the test.
func open(t *testing.T, cfg ssh.Config) *guest.Sandbox {
	t.Helper()
	s, err := ssh.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := s.Terminate(context.WithoutCancel(t.Context()))
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func output(t *testing.T, s *guest.Sandbox, args ...string) string {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, primitives.Command{Args: args}, primitives.RunOptions{})
	if err != nil || !res.Status.Success() {
		t.Fatalf("%q: %+v, %v", args, res, err)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// TestContract runs the groups that a connection through a real sshd can affect: the guest serves
// the files of this machine, as it does in the contract test of the runner.
func TestContract(t *testing.T) {
	if os.Getenv("PRIMITIVESTEST_CLIENT") == "" { // client processes use the server of this one
		testssh.Start(t)
	}
	primitivestest.Run(t, primitivestest.Harness{
		Groups: []string{"exec", "streams", "ending", "lifecycle", "forward"},
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			return ssh.New(ctx, config(t, dir))
		},
		Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
			return ssh.Attach(ctx, config(t, dir), id)
		},
		Provider: func(dir string) (primitives.Provider, primitives.Spec) {
			return config(t, dir).Provider, primitives.Spec{}
		},
	})
}

func TestTheRunnerIsCopiedOnce(t *testing.T) {
	testssh.Start(t)
	cfg := config(t, filepath.Join(t.TempDir(), "a root"))
	copied := 0
	cfg.Progress = func(string) { copied++ }
	first := open(t, cfg)
	second := open(t, cfg)
	if copied != 1 {
		t.Errorf("it is copied %d times", copied)
	}
	if first.ID() == second.ID() {
		t.Errorf("both sandboxes are %s", first.ID())
	}
	at := first.RunnerPath(cfg.Runner)
	if info, err := os.Stat(at); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the runner: %v, %v", info, err)
	}
	if left, err := filepath.Glob(at + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left of the copy: %q, %v", left, err)
	}
}

func TestTheEnvironmentIsInNoCommandLine(t *testing.T) {
	testssh.Start(t)
	cfg := config(t, t.TempDir())
	const secret = "it's a \"$secret\"\nof two lines" // made up
	cfg.Env = map[string]string{"SECRET": secret, "OTHER": ""}
	s := open(t, cfg)
	if got := output(t, s, "sh", "-c", `echo "$SECRET$OTHER"; env | grep -c AGENTENV_SSH || true`); got != secret+"\n0" {
		t.Errorf("got %q", got)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range lines {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), "of two lines") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestASandboxNeedsOneConnection(t *testing.T) {
	server := testssh.Start(t)
	cfg := config(t, t.TempDir())
	if _, err := open(t, cfg).Terminate(t.Context()); err != nil { // this copies the runner
		t.Fatal(err)
	}
	n := 0
	for range 5 { // Terminate connects again if a machine that is very busy does not end the sandbox in time
		before := server.Logins(t)
		s := open(t, cfg)
		output(t, s, "true")
		if _, err := s.Terminate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n = server.Logins(t) - before; n == 1 {
			break
		}
	}
	if n != 1 {
		t.Errorf("%d connections", n)
	}
	if list, err := cfg.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("List: %+v, %v", list, err)
	}
}

func TestSandboxesOfAnotherReleaseAreListedAndRemoved(t *testing.T) {
	testssh.Start(t)
	cfg := config(t, t.TempDir())
	cfg.Keep = true
	s := open(t, cfg)
	program, err := os.ReadFile(cfg.Runner)
	if err != nil {
		t.Fatal(err)
	}
	newer := cfg
	newer.Runner = filepath.Join(t.TempDir(), "envrunner")
	if err := os.WriteFile(newer.Runner, append(program, 0), 0o700); err != nil {
		t.Fatal(err)
	}
	attached, err := ssh.Attach(t.Context(), newer, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, attached, "echo", "on"); got != "on" || attached.RunnerPath(newer.Runner) == s.RunnerPath(cfg.Runner) {
		t.Errorf("it printed %q, and the runner is %s", got, attached.RunnerPath(newer.Runner))
	}
	if err := attached.Close(); err != nil {
		t.Error(err)
	}
	if list, err := newer.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != s.ID() {
		t.Errorf("List: %+v, %v", list, err)
	}
	if err := newer.Remove(t.Context(), s.ID()); err != nil {
		t.Error(err)
	}
}

func TestOldRunnersAreRemoved(t *testing.T) {
	testssh.Start(t)
	cfg := config(t, t.TempDir())
	cfg.Keep = true
	s := open(t, cfg)
	bin := filepath.Dir(s.RunnerPath(cfg.Runner))
	longAgo := time.Now().Add(-31 * 24 * time.Hour)
	release := func(name string, used time.Time) string {
		t.Helper()
		program, err := os.ReadFile("/bin/sleep")
		file := filepath.Join(bin, name)
		if err = errors.Join(err, os.WriteFile(file, program, 0o700), os.Chtimes(file, used, used)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	release("envrunner-old", longAgo)
	release("envrunner-old.123", longAgo) // an interrupted copy
	release("envrunner-new", time.Now())
	release("mine", longAgo)
	running := exec.CommandContext(t.Context(), release("envrunner-running", longAgo), "600")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(running.Process.Kill(), running.Wait()) })
	own := s.RunnerPath(cfg.Runner)
	if err := os.Chtimes(own, longAgo, longAgo); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		removed, err := cfg.GC(t.Context(), primitives.GCOptions{DryRun: dry})
		var names []string
		for _, r := range removed {
			names = append(names, r.ID)
		}
		if err != nil || !slices.Equal(names, []string{"envrunner-old", "envrunner-old.123"}) {
			t.Errorf("removed %q, %v", names, err)
		}
	}
	entries, err := os.ReadDir(bin)
	if err != nil || len(entries) != 4 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if info, err := os.Stat(own); err != nil || time.Since(info.ModTime()) > 24*time.Hour {
		t.Errorf("the use of a runner is not noted: %v, %v", info.ModTime(), err)
	}
}

// TestAKilledProgramLeavesNoConnection checks that the ssh command ends with the program. The
// guest of a kept sandbox would keep the connection open.
func TestAKilledProgramLeavesNoConnection(t *testing.T) {
	testssh.Start(t)
	cfg := config(t, t.TempDir())
	cfg.Keep = true
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id string
	var connection int
	if _, err := fmt.Fscan(out, &id, &connection); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for begin := time.Now(); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", connection))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("the ssh command runs on: %s", stat)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	list, err := cfg.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Owned || list[0].Status != primitives.StatusRunning {
		t.Errorf("List: %+v, %v", list, err)
	}
	if err := cfg.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// childVariable holds the configuration of the sandbox that this program creates, instead of
// running tests, when it is started as a child.
const childVariable = "AGENTENV_SSH_TEST_CHILD"

// beKilled creates a sandbox, prints its ID and the process ID of the ssh command, and waits to
// be killed.
func beKilled(config string) {
	var cfg ssh.Config
	err := json.Unmarshal([]byte(config), &cfg)
	if err == nil {
		var s *guest.Sandbox
		if s, err = ssh.New(context.Background(), cfg); err == nil {
			fmt.Println(s.ID(), ssh.Connection(s))
			select {}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestSandboxesOfAMachine(t *testing.T) {
	testssh.Start(t)
	ctx, cfg := t.Context(), config(t, t.TempDir())
	if list, err := cfg.List(ctx); err != nil || len(list) > 0 {
		t.Errorf("List without a runner: %+v, %v", list, err)
	}
	cfg.Keep = true
	s := open(t, cfg)
	list, err := cfg.List(ctx)
	if err != nil || len(list) != 1 || list[0].ID != s.ID() || !list[0].Owned || list[0].Created.IsZero() || list[0].GuestVersion != guest.Version {
		t.Errorf("List: %+v, %v", list, err)
	}
	if removed, err := cfg.GC(ctx, primitives.GCOptions{NoGrace: true}); err != nil || len(removed) > 0 {
		t.Errorf("GC: %+v, %v", removed, err)
	}
	if err := cfg.Remove(ctx, s.ID()); err != nil {
		t.Error(err)
	}
	if state, err := s.Poll(ctx); err != nil || state.Status != primitives.StatusTerminated {
		t.Errorf("Poll: %+v, %v", state, err)
	}
	for name, err := range map[string]error{
		"Remove":  cfg.Remove(ctx, s.ID()),
		"no ID":   cfg.Remove(ctx, "../x"),
		"Attach":  second(ssh.Attach(ctx, cfg, s.ID())),
		"attach-": second(ssh.Attach(ctx, cfg, "--list")),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ any, err error) error { return err }

func TestErrorsNameTheWrongSetting(t *testing.T) {
	address := testssh.Start(t).Address
	good := config(t, t.TempDir())
	for name, c := range map[string]struct {
		change func(*ssh.Config)
		is     error
		says   string
	}{
		"no host":             {func(c *ssh.Config) { c.Host = "" }, fs.ErrInvalid, "host"},
		"an option":           {func(c *ssh.Config) { c.Host = "-oProxyCommand=true" }, fs.ErrInvalid, "host"},
		"a relative root":     {func(c *ssh.Config) { c.Root = "x" }, fs.ErrInvalid, "root"},
		"a variable":          {func(c *ssh.Config) { c.Env = map[string]string{"": "x"} }, fs.ErrInvalid, ""},
		"no runner":           {func(c *ssh.Config) { c.Runner = "/nosuch" }, fs.ErrNotExist, "runner"},
		"no machine":          {func(c *ssh.Config) { c.Host = "nosuch.invalid" }, primitives.ErrUnavailable, "without questions"},
		"another host key":    {func(c *ssh.Config) { c.Host = "ssh://localhost" + strings.TrimPrefix(address, "127.0.0.1") }, primitives.ErrUnavailable, "ssh"},
		"no such workspace":   {func(c *ssh.Config) { c.Workspace = "/nosuch" }, primitives.ErrUnavailable, "/nosuch"},
		"no such user":        {func(c *ssh.Config) { c.User = "nosuch-user" }, primitives.ErrUnavailable, "nosuch-user"},
		"a program, no guest": {func(c *ssh.Config) { c.Runner = "/bin/true" }, primitives.ErrUnavailable, "handshake"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			_, err := ssh.New(t.Context(), cfg)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v and %q", err, c.is, c.says)
			}
		})
	}
}

func TestPlatform(t *testing.T) {
	testssh.Start(t)
	goos, goarch, err := ssh.Platform(t.Context(), ssh.Provider{Host: testssh.Alias})
	if err != nil || goos != "linux" || goarch == "" {
		t.Errorf("%s/%s, %v", goos, goarch, err)
	}
}

// A machine whose login scripts print or wait without end must not hold up a program.
func TestNoMachineHoldsUpAProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for name, c := range map[string]struct {
		machine string // in place of ssh
		timeout time.Duration
		is      error
		says    string
	}{
		"prints without end":     {"exec yes", time.Hour, primitives.ErrLimit, "prints more than"},
		"complains without end":  {"exec yes >&2", time.Millisecond, primitives.ErrUnavailable, "does not end in 1ms"},
		"waits without end":      {"exec sleep 3600", time.Millisecond, primitives.ErrUnavailable, "does not end in 1ms"},
		"ends at once, with EOF": {"exit 255", time.Hour, primitives.ErrUnavailable, "make \"ssh machine true\" work"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte("#!/bin/sh\n"+c.machine+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			err := ssh.RunScript(t.Context(), c.timeout, "uname")
			if !errors.Is(err, c.is) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}
