package codex

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

const fakeThread = "01a1fed7-0aff-79a1-9809-ddee53f8d0f2"

// answering returns the command of a shell program that opens a thread, as Codex does, and then
// runs the script more. The request for the first turn has the ID 3; the turn is "t".
func answering(t *testing.T, more string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	agenttest.WriteFile(t, file, `say() { printf '%s\n' "$1"; }
started='{"method":"turn/started","params":{"threadId":"`+fakeThread+`","turn":{"id":"t"}}}'
completed='{"method":"turn/completed","params":{"threadId":"`+fakeThread+`","turn":{"id":"t","status":"completed"}}}'
read -r hello
say '{"id":1,"result":{"userAgent":"agentenv/0.0.1 (test)"}}'
read -r initialized
read -r open
say '{"id":2,"result":{"thread":{"id":"`+fakeThread+`"},"model":"m"}}'
`+more)
	return []string{"/bin/sh", file}
}

// fakeSession returns a session whose agent is the command argv.
func fakeSession(t *testing.T, argv []string) runnerscripts.Session {
	t.Helper()
	s := agenttest.NewSession(t, agent.NewUUID(), agentName)
	s.Agent.Command = argv
	s.Agent.Env = map[string]string{envKey: "test-key"}
	return s
}

// untilHang is longer than any program needs to end its commands.
const untilHang = 3 * time.Minute

func startProgram(t *testing.T, argv []string) (*conversation, *agenttest.Recorder, error) {
	t.Helper()
	return startProgramWith(t, Driver{ending: untilHang}, argv)
}

func startProgramWith(t *testing.T, d Driver, argv []string) (*conversation, *agenttest.Recorder, error) {
	t.Helper()
	out := agenttest.NewRecorder()
	c, err := d.Start(t.Context(), runnerscripts.QueryRequest{Session: fakeSession(t, argv)}, out)
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

func TestProgramThatNeverAnswersFailsTheStart(t *testing.T) {
	t.Parallel()
	s := fakeSession(t, []string{"/bin/sh", "-c", "exec sleep 600"})
	_, err := Driver{patience: 50 * time.Millisecond}.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.command") || !strings.Contains(err.Error(), "50ms") {
		t.Errorf("error %v", err)
	}
}

func TestProgramThatDoesNotStartSaysWhy(t *testing.T) {
	t.Parallel()
	foreign := filepath.Join(t.TempDir(), "codex")
	if err := os.WriteFile(foreign, []byte("\x7fELF of another platform"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		argv []string
		want string
	}{
		"ends at once":        {[]string{"/bin/sh", "-c", "echo no such thing >&2; exit 7"}, "no such thing"},
		"of another platform": {[]string{foreign}, "agent.command"},
		"another protocol": {
			[]string{"/bin/sh", "-c", `read -r l; echo '{"id":1,"error":{"code":-32601,"message":"unknown method"}}'; cat >/dev/null`},
			"unknown method",
		},
		"replies that make no sense": {
			[]string{"/bin/sh", "-c", `read -r l; echo '{"id":1,"result":{}}'; read -r l; read -r l; echo '{"id":2,"result":{}}'; cat >/dev/null`},
			"install Codex " + testedVersion,
		},
	} {
		_, _, err := startProgram(t, tt.argv)
		if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestProgramThatSaysNothingIsEndedWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := fakeSession(t, []string{"/bin/sh", "-c", "exec sleep 600"})
	_, err := Driver{}.Start(ctx, runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestEndWithoutAResultFailsTheQuery(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ more, want string }{
		"with status 0":         {`read -r turn; exit 0`, "it ended"},
		"in the middle of one":  {`read -r turn; say '{"id":3,"result":{}}'; say "$started"; exit 0`, "it ended"},
		"with a status":         {`read -r turn; echo 'the real reason' >&2; exit 3`, "exit status 3: the real reason"},
		"with too long a line ": {`read -r turn; say "$started"; head -c 300000000 /dev/zero | tr '\0' x; exec sleep 600`, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _, err := startProgram(t, answering(t, tt.more))
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Prompt(t.Context(), "q", "hello")
			if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestGarbageAndLongLinesDoNotEndTheQuery(t *testing.T) {
	t.Parallel()
	c, out, err := startProgram(t, answering(t, `read -r turn
say '{"id":3,"result":{}}'
say "$started"
echo 'Warning: this is not JSON'
say '{"method":"of/a/newer/version","params":{"x":1}}'
say '{"method":"item/completed","params":[]}'
printf '{"method":"item/completed","params":{"threadId":"`+fakeThread+`","item":{"type":"agentMessage","id":"m","text":"'
head -c 3000000 /dev/zero | tr '\0' x
printf '"}}}\n'
say "$completed"
read -r end`))
	if err != nil {
		t.Fatal(err)
	}
	done, err := c.Prompt(t.Context(), "q", "hello")
	if err != nil || done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("ended with %+v, %v", done, err)
	}
	if got := agenttest.Said(t, out.All()); len(got) != 3_000_001 {
		t.Errorf("the agent said %d bytes", len(got))
	}
	if logs := agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog); len(logs) != 2 {
		t.Errorf("logs: %+v", logs)
	}
}

func TestRequestThatIsRefusedFailsTheQueryAlone(t *testing.T) {
	t.Parallel()
	c, _, err := startProgram(t, answering(t, `read -r turn
say '{"id":3,"error":{"code":-32600,"message":"no such model"}}'
read -r turn
say "$started"
say '{"id":4,"result":{}}'
say "$completed"
read -r end`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prompt(t.Context(), "q", "hello"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), "no such model") {
		t.Errorf("error %v", err)
	}
	if done, err := c.Prompt(t.Context(), "q", "hello"); err != nil || done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("the next one: %+v, %v", done, err)
	}
}

// A turn cannot be interrupted right after the request for it.
func TestInterruptBeforeTheTurnIsSentAtItsStart(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c, out, err := startProgram(t, answering(t, `read -r turn
say '{"method":"warning","params":{"message":"the turn is asked for"}}'
read -r go < `+fifo+`
say '{"id":3,"result":{}}'
say "$started"
read -r interrupt # the request 4
say '{"id":4,"error":{"code":-32600,"message":"no active turn to interrupt"}}'
say '{"method":"item/started","params":{"threadId":"`+fakeThread+`","item":{"type":"userMessage","id":"u"}}}'
read -r interrupt
case $interrupt in *turn/interrupt*)
	say '{"method":"turn/completed","params":{"threadId":"`+fakeThread+`","turn":{"id":"t","status":"interrupted"}}}';;
esac
read -r clean
say '{"id":6,"result":{}}'
read -r end`))
	if err != nil {
		t.Fatal(err)
	}
	interruptQuery(t, c, out, func() { openFIFO(t, fifo, "go\n") })
}

func TestInterruptDoesNotWaitForAProgramThatHangs(t *testing.T) {
	t.Parallel()
	c, out, err := startProgram(t, answering(t, `read -r turn
say "$started"
say '{"method":"warning","params":{"message":"the turn runs"}}'
exec sleep 600`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Prompt(ctx, "q", "hello")
		ended <- err
	}()
	out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeLog))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestNoProgramIsStartedAfterClose(t *testing.T) {
	t.Parallel()
	c, _, err := startProgram(t, answering(t, "exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	<-c.peer.Done()
	before := c.peer
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// A concurrent SetModel does this if it saw the end of the program before Close.
	if _, err := c.start(t.Context()); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("error %v", err)
	}
	if c.peer != before {
		t.Error("another program was started")
	}
}

func TestUnknownRequestOfTheProgramIsAnsweredWithAnError(t *testing.T) {
	t.Parallel()
	reply := filepath.Join(t.TempDir(), "reply")
	c, out, err := startProgram(t, answering(t, `read -r turn
say '{"id":3,"result":{}}'
say "$started"
say '{"id":0,"method":"attestation/generate","params":{}}'
read -r reply
say "$reply" > `+reply+`
say "$completed"
read -r end`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prompt(t.Context(), "q", "hello"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(reply)
	if err != nil || !strings.Contains(string(data), `"error"`) || !strings.Contains(string(data), `"id":0`) {
		t.Errorf("answered %s, %v", data, err)
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || !strings.Contains(logs[0].Message, "attestation/generate") {
		t.Errorf("logs: %+v", logs)
	}
}
