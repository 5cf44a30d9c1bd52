package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// patience bounds how long a test waits.
const patience = 5 * time.Minute

// screen is a running envctl on a terminal.
type screen struct {
	t    *testing.T
	pty  *os.File
	cmd  *exec.Cmd
	news chan []byte
	seen bytes.Buffer
}

// startOnTerminal runs this test's binary as envctl on a terminal.
func startOnTerminal(t *testing.T, args ...string) *screen {
	t.Helper()
	return startOnTerminalWith(t, nil, 100, args...)
}

// startOnTerminalWith is startOnTerminal with another standard output, if it is not nil, and so many columns.
func startOnTerminalWith(t *testing.T, out *os.File, columns uint16, args ...string) *screen {
	t.Helper()
	runner, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.Command(self)
	cmd.Args = append([]string{"envctl"}, args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_CACHE_HOME=" + home + "/.cache",
		"TERM=xterm", "NO_COLOR=1", "GORACE=atexit_sleep_ms=0", bundle.ExplicitVariable + "=" + runner,
	}
	if out != nil {
		cmd.Stdout = out
	}
	p, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: columns})
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, pty: p, cmd: cmd, news: make(chan []byte)}
	go s.read()
	t.Cleanup(func() {
		p.Close()
		checkNothingLeft(t, home)
	})
	return s
}

func (s *screen) read() {
	defer close(s.news)
	for {
		buf := make([]byte, 4096)
		n, err := s.pty.Read(buf)
		if n > 0 {
			s.news <- buf[:n]
		}
		if err != nil {
			return
		}
	}
}

// wait reads until text has appeared, and discards the output up to and including it. It returns the output before it.
func (s *screen) wait(text string) (before string) {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		if head, after, ok := bytes.Cut(s.seen.Bytes(), []byte(text)); ok {
			before = string(head)
			rest := bytes.Clone(after)
			s.seen.Reset()
			s.seen.Write(rest)
			return before
		}
		select {
		case b, ok := <-s.news:
			if !ok {
				s.t.Fatalf("the program ended before %q appeared; the screen shows:\n%s", text, s.seen.String())
			}
			s.see(b)
		case <-deadline:
			s.t.Fatalf("%q did not appear; the screen shows:\n%s", text, s.seen.String())
		}
	}
}

// see adds output, without the lines that are erased.
func (s *screen) see(b []byte) {
	s.seen.Write(b)
	for {
		text := s.seen.Bytes()
		i := bytes.Index(text, []byte(term.EraseLine))
		if i < 0 {
			return
		}
		begin := bytes.LastIndexByte(text[:i], '\n') + 1
		s.seen = *bytes.NewBuffer(slices.Delete(text, begin, i+len(term.EraseLine)))
	}
}

func (s *screen) typeIn(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.pty, text); err != nil {
		s.t.Fatal(err)
	}
}

// end reads to the end and returns the exit status. A program that does not end is killed.
func (s *screen) end() int {
	s.t.Helper()
	defer time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() }).Stop()
	for b := range s.news {
		s.see(b)
	}
	_ = s.cmd.Wait() // the exit status is returned below
	return s.cmd.ProcessState.ExitCode()
}

func TestExecOnATerminalPassesSizeAndKeys(t *testing.T) {
	s := startOnTerminal(t, "exec", "-t", "--", "sh", "-c",
		`stty size; trap 'echo resized; stty size; exit 5' WINCH; echo ready; read line; echo "got $line"; while :; do sleep 0.05; done`)
	s.wait("40 100")
	s.wait("ready")
	s.typeIn("some keys\r")
	s.wait("got some keys")
	if err := pty.Setsize(s.pty, &pty.Winsize{Rows: 50, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	s.wait("resized")
	s.wait("50 120")
	if code := s.end(); code != 5 {
		t.Errorf("exit status %d, want the command's 5", code)
	}
}

func TestInterruptReachesTheCommandOnATerminal(t *testing.T) {
	s := startOnTerminal(t, "exec", "-t", "--", "sh", "-c", `trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done`)
	s.wait("ready")
	s.typeIn("\x03")
	s.wait("caught")
	if code := s.end(); code != 9 {
		t.Errorf("exit status %d, want 9", code)
	}
}

func TestPermissionIsAskedOnATerminal(t *testing.T) {
	answers := []struct {
		line    string
		written bool
	}{
		{"y", true},
		{"1", true},
		{"n", false},
		{"write it in Latin", false},
	}
	var turn runnerscripts.ScenarioTurn
	for i := range answers {
		write := &runnerscripts.ScenarioWrite{Path: fmt.Sprint("asked", i), Content: "really written\n"}
		turn.Steps = append(turn.Steps, runnerscripts.ScenarioStep{Ask: &runnerscripts.ScenarioStep{Write: write}})
	}
	turn.Steps = append(turn.Steps, runnerscripts.ScenarioStep{Text: "over"})
	scenario, err := json.Marshal(runnerscripts.Scenario{Turns: []runnerscripts.ScenarioTurn{turn}})
	if err != nil {
		t.Fatal(err)
	}
	patch := filepath.Join(t.TempDir(), "patch")
	s := startOnTerminal(t, "run", "--scenario", file(t, "ask.json", string(scenario)), "--patch", patch, "go")
	for _, answer := range answers {
		s.wait("Allow?")
		s.wait("instead: ")
		s.typeIn(answer.line + "\r")
	}
	s.wait("over")
	s.ends()
	diff, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	for i, answer := range answers {
		if got := strings.Contains(string(diff), fmt.Sprintf("+++ b/asked%d\n", i)); got != answer.written {
			t.Errorf("%s: written: %v, want %v", answer.line, got, answer.written)
		}
	}
}

func TestAHangUpEndsTheSandbox(t *testing.T) {
	scenario := filepath.Join(t.TempDir(), "slow.json")
	if err := os.WriteFile(scenario, []byte(`{"turns":[{"steps":[{"run":["sleep","600"]}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// Under nohup the tests ignore hang-ups, and what they start would inherit that.
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, syscall.SIGHUP)
	defer signal.Stop(hangUps)
	s := startOnTerminal(t, "run", "--scenario", scenario, "go")
	s.wait("sleep")
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if code := s.end(); code != 129 {
		t.Errorf("exit status %d, want 129, which is 128 and the signal", code)
	}
}
