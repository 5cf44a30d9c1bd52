package claude

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// answering writes a shell program that answers the first control request, as Claude Code does, and
// then runs more.
func answering(t *testing.T, more string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	agenttest.WriteFile(t, file, `read -r line
id=${line#*'"request_id":"'}
id=${id%%'"'*}
printf '{"type":"control_response","response":{"subtype":"success","request_id":"%s","response":{}}}\n' "$id"
`+more)
	return []string{"/bin/sh", file}
}

func startProgram(t *testing.T, argv []string) (*conversation, *agenttest.Recorder, error) {
	t.Helper()
	s := agenttest.NewSession(t, agent.NewUUID(), programName)
	s.Agent.Command = argv
	out := agenttest.NewRecorder()
	c, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, out)
	if err != nil {
		return nil, out, err
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c.(*conversation), out, nil
}

func TestKilledProgramLeavesNoSocket(t *testing.T) {
	t.Parallel()
	const script = `mkdir -p -m 700 /tmp/cc-socks-$(id -u) && : > /tmp/cc-socks-$(id -u)/$$.sock; echo '{}'; exec sleep 600`
	ready := make(chan struct{}, 1)
	p, err := child.Start(child.Command{Args: []string{"/bin/sh", "-c", script}, Env: os.Environ(), Ended: removeSocket}, func([]byte) { ready <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	<-ready
	socket := fallbackSocket(p.PID())
	if _, err := os.Stat(socket); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", socket, err)
	}
}

func TestCrashTellsTheStatusAndTheEndOfStandardError(t *testing.T) {
	t.Parallel()
	c, _, err := startProgram(t, answering(t, `read -r prompt
i=0; while [ $i -lt 3000 ]; do echo "line $i of much noise" >&2; i=$((i+1)); done
echo 'the real reason' >&2
exit 3`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Prompt(t.Context(), "q", "hello")
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "exit status 3") ||
		!strings.Contains(err.Error(), "the real reason") {
		t.Errorf("error %v", err)
	}
	if n := len(err.Error()); n > 20<<10 {
		t.Errorf("the error has %d bytes", n)
	}
}

func TestProgramThatEndsAtOnceFailsTheStart(t *testing.T) {
	t.Parallel()
	_, _, err := startProgram(t, []string{"/bin/sh", "-c", "echo no such thing >&2; exit 7"})
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("error %v", err)
	}
}

func TestProgramThatSaysNothingIsEndedWithTheContext(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), programName)
	pidFile := filepath.Join(t.TempDir(), "pid")
	s.Agent.Command = []string{"/bin/sh", "-c", "echo $$ > " + pidFile + "; exec sleep 600"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Driver{}.Start(ctx, runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestNoProgramOfThatKindIsAClearError(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "claude")
	if err := os.WriteFile(file, []byte("\x7fELF of another platform"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, _, err := startProgram(t, []string{file})
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.command") {
		t.Errorf("error %v", err)
	}
}

func TestProgramThatEndsWellWithoutAResultFailsTheQuery(t *testing.T) {
	t.Parallel()
	c, _, err := startProgram(t, answering(t, "read -r prompt\nexit 0"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second prompt restarts it
		if _, err := c.Prompt(t.Context(), "q", "hello"); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "send the prompt again") {
			t.Errorf("error %v", err)
		}
	}
}

func TestLineWithoutAnEndFailsTheQuery(t *testing.T) {
	t.Parallel()
	c, _, err := startProgram(t, answering(t, "read -r prompt\nexec tr '\\0' x </dev/zero"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prompt(t.Context(), "q", "hello"); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "line") {
		t.Errorf("error %v", err)
	}
}

func TestAnotherProgramIsNotTakenForClaudeCode(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), programName)
	s.Agent.Command = []string{"/bin/echo", "9.9"}
	_, err := Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: s})
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), `says "9.9 --version"`) {
		t.Errorf("error %v", err)
	}
}

func TestGarbageAndLongLinesDoNotEndTheQuery(t *testing.T) {
	t.Parallel()
	c, out, err := startProgram(t, answering(t, `read -r prompt
echo 'Warning: this is not JSON'
printf '{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"'
head -c 3000000 /dev/zero | tr '\0' x
printf '"}]}}\n'
echo '{"type":"result","subtype":"success","is_error":false,"result":"","modelUsage":{"m":{"inputTokens":5}}}'
read -r end`))
	if err != nil {
		t.Fatal(err)
	}
	done, err := c.Prompt(t.Context(), "q", "hello")
	if err != nil || done.StopReason != runnerscripts.StopEndTurn || done.Usage.InputTokens != 5 {
		t.Errorf("ended with %+v, %v", done, err)
	}
	if got := agenttest.Said(t, out.All()); len(got) != 3_000_001 {
		t.Errorf("the agent said %d bytes", len(got))
	}
	if logs := agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog); len(logs) != 1 {
		t.Errorf("logs: %+v", logs)
	}
}
