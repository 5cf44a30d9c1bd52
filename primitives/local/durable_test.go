package local_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func durableConfig(t *testing.T) local.Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return local.Config{Root: t.TempDir(), Runner: self}
}

func durable(script string) primitives.Command {
	cmd := shell(script)
	cmd.Durable = true
	return cmd
}

func reattach(t *testing.T, s *local.Sandbox, id string, from primitives.Offset) primitives.Process {
	t.Helper()
	p, err := s.Reattach(t.Context(), id, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReattachReadsFromTheOffsetAndFollows(t *testing.T) {
	s := newSandbox(t, durableConfig(t))
	run(t, s, shell("mkfifo go"))
	p := start(t, s, durable("printf abcdef >&2; printf 0123456789; read line < go; printf $line; exit 7"))
	head := make([]byte, 10)
	if _, err := io.ReadFull(p.Stdout(), head); err != nil || string(head) != "0123456789" {
		t.Fatalf("%q, %v", head, err)
	}
	// The supervisor writes each stream down by itself.
	if _, err := io.ReadFull(p.Stderr(), head[:6]); err != nil || string(head[:6]) != "abcdef" {
		t.Fatalf("%q, %v", head[:6], err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("wait after letting go: %v", err)
	}
	again := reattach(t, s, p.ID(), primitives.Offset{Stdout: 8, Stderr: 6})
	run(t, s, shell("echo more > go"))
	if out := readAll(t, again.Stdout()); out != "89more" {
		t.Errorf("stdout %q", out)
	}
	if out := readAll(t, again.Stderr()); out != "" {
		t.Errorf("stderr %q", out)
	}
	want := primitives.ExitStatus{Code: 7, Reason: primitives.ReasonExited}
	if st := wait(t, again); st != want {
		t.Errorf("status %+v", st)
	}
	if err := again.Signal(t.Context(), primitives.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	if st := wait(t, reattach(t, s, p.ID(), primitives.Offset{Stdout: 14})); st != want {
		t.Errorf("status of the finished command %+v", st)
	}
	for _, from := range []primitives.Offset{{Stdout: 15}, {Stderr: 7}, {Stdout: -1}} {
		if _, err := s.Reattach(t.Context(), p.ID(), from); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("offset %+v: %v", from, err)
		}
	}
	for _, id := range []string{"", "d-unknown", "d-../../x", "x-1"} {
		if _, err := s.Reattach(t.Context(), id, primitives.Offset{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

func TestADurableCommandSurvivesTheKillOfItsOwner(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		root := t.TempDir()
		o := startOwner(t, sweeping, root, "durable mkfifo go; echo up; read line < go; echo $line; exit 5")
		o.kill()
		self, _ := os.Executable()
		s, err := local.Attach(t.Context(), local.Config{Root: root, Runner: self}, o.sandbox)
		if err != nil {
			t.Fatal(err)
		}
		endAfter(t, s)
		p := reattach(t, s, o.commands[0], primitives.Offset{})
		if line := readLine(t, p.Stdout()); line != "up" {
			t.Fatalf("line %q", line)
		}
		run(t, s, shell("echo over > go"))
		if out := readAll(t, p.Stdout()); out != "over\n" {
			t.Errorf("stdout %q", out)
		}
		if st := wait(t, p); st.Code != 5 || st.Reason != primitives.ReasonExited {
			t.Errorf("status %+v", st)
		}
	})
}

func TestADurableCommandWhoseSupervisorWasKilledIsLost(t *testing.T) {
	s := newSandbox(t, durableConfig(t))
	p := start(t, s, durable("echo $$; exec sleep 600"))
	leader, err := strconv.Atoi(readLine(t, p.Stdout()))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(leader) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	supervisor, err := strconv.Atoi(strings.Fields(string(stat))[3])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st := wait(t, p); st.Reason != primitives.ReasonLost {
		t.Errorf("status %+v", st)
	}
	eventually(t, "a lost command does not run on", func() bool { return !alive(leader) })
	if st := wait(t, reattach(t, s, p.ID(), primitives.Offset{})); st.Reason != primitives.ReasonLost {
		t.Errorf("status after attaching %+v", st)
	}
}

func TestAnotherProgramTimesAndSignalsADurableCommand(t *testing.T) {
	s := newSandbox(t, durableConfig(t))
	timed := durable("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & sleep 600")
	timed.Timeout, timed.Grace = 50*time.Millisecond, 50*time.Millisecond
	if st := wait(t, start(t, s, timed)); st.Reason != primitives.ReasonTimeout {
		t.Errorf("timed out: %+v", st)
	}
	p := start(t, s, durable("echo up; sleep 600"))
	readLine(t, p.Stdout())
	if err := p.Signal(t.Context(), primitives.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if st := wait(t, p); st.Signal != primitives.SIGUSR1 || st.Reason != primitives.ReasonSignaled {
		t.Errorf("signalled: %+v", st)
	}
}

func TestTerminateEndsDurableCommands(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		by := local.New
		if sweeping {
			by = local.NewSweeping
		}
		s := newSandboxBy(t, by, durableConfig(t))
		p := start(t, s, durable("trap '' TERM; echo up; sleep 600"))
		readLine(t, p.Stdout())
		if _, err := s.Terminate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := wait(t, p); st.Reason != primitives.ReasonCancelled {
			t.Errorf("status %+v", st)
		}
		if left := marked(t, s.ID()); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestADurableCommandThatCannotStartSaysWhy(t *testing.T) {
	s := newSandbox(t, durableConfig(t))
	if err := os.WriteFile(filepath.Join(s.Paths().Workspace, "bare"), []byte("echo"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cmd  primitives.Command
		want error
	}{
		{primitives.Command{Args: []string{"no-such-program"}}, primitives.ErrCommandNotFound},
		{primitives.Command{Args: []string{"/no/such/program"}}, primitives.ErrCommandNotFound},
		{primitives.Command{Args: []string{"/bin/true"}, Dir: "/no/such"}, primitives.ErrWorkingDir},
		{primitives.Command{Args: []string{"./bare"}}, fs.ErrInvalid},
	} {
		tt.cmd.Durable = true
		if _, err := s.Exec(t.Context(), tt.cmd); !errors.Is(err, tt.want) {
			t.Errorf("%q: %v is not %v", tt.cmd.Args, err, tt.want)
		}
	}
	if left, err := os.ReadDir(filepath.Join(s.Paths().App, "exec")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWithoutARunnerThereAreNoDurableCommands(t *testing.T) {
	for _, runner := range []string{"", "/no/such/runner"} {
		s := newSandbox(t, local.Config{Runner: runner})
		if c := s.Capabilities(); c.Durable || c.Note == "" {
			t.Errorf("capabilities %+v", c)
		}
		if _, err := s.Exec(t.Context(), durable("true")); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("exec: %v", err)
		}
		if _, err := s.Reattach(t.Context(), "d-x", primitives.Offset{}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("reattach: %v", err)
		}
	}
}

func TestOutputUpToItsLimitIsWhole(t *testing.T) {
	const most = primitives.MaxDurableOutput
	s := newSandbox(t, durableConfig(t))
	p := start(t, s, durable("true"))
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		size int64
		lost error
	}{{most - 1, nil}, {most, nil}, {most + 1, primitives.ErrLimit}} {
		if err := os.Truncate(filepath.Join(s.Paths().App, "exec", p.ID(), "stdout"), c.size); err != nil {
			t.Fatal(err)
		}
		for _, still := range []bool{false, true} {
			again := reattach(t, s, p.ID(), primitives.Offset{Stdout: most - 3, NoFollow: still})
			got, err := io.ReadAll(again.Stdout())
			if want := min(c.size, most) - (most - 3); int64(len(got)) != want || !errors.Is(err, c.lost) {
				t.Errorf("of %d bytes %d were read, want %d; %v", c.size, len(got), want, err)
			}
			if n, err := again.Stdout().Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("reading on gave %d bytes, %v", n, err)
			}
		}
	}
}
