package claude

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestProgramThatNeverAnswersFailsTheStart(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), programName)
	s.Agent.Command = []string{"/bin/sh", "-c", "exec sleep 600"}
	_, err := Driver{patience: 50 * time.Millisecond}.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.command") || !strings.Contains(err.Error(), "50ms") {
		t.Errorf("error %v", err)
	}
}

func TestInterruptDoesNotWaitForAProgramThatHangs(t *testing.T) {
	t.Parallel()
	c, out, err := startProgram(t, answering(t, `read -r prompt
echo '{"type":"system","subtype":"init","permissionMode":"plan"}'
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
	out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeSessionInitialized))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// After a crash between two prompts, the driver first starts the program again.
func TestInterruptWhileTheProgramIsStartedAgainIsNotLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, first := filepath.Join(dir, "program"), filepath.Join(dir, "first")
	agenttest.WriteFile(t, first, "")
	agenttest.WriteFile(t, program, `read -r line
id=${line#*'"request_id":"'}
id=${id%%'"'*}
echo '{"type":"system","subtype":"status","permissionMode":"plan"}'
printf '{"type":"control_response","response":{"subtype":"success","request_id":"%s","response":{}}}\n' "$id"
if rm "`+first+`" 2>/dev/null; then exit 0; fi
read -r prompt
echo '{"type":"system","subtype":"init","permissionMode":"plan"}'
while read -r line; do
	case $line in *'"interrupt"'*)
		echo '{"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_streaming"}';;
	esac
done`)
	c, out, err := startProgram(t, []string{"/bin/sh", program})
	if err != nil {
		t.Fatal(err)
	}
	<-c.process.Done()
	c.mode = "" // so that the second start also reports the mode
	// The runner, too, calls Interrupt while an event is emitted.
	c.out = hooked{Recorder: out, hook: func() {
		if err := c.Interrupt(t.Context()); err != nil {
			t.Error(err)
		}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), unaskedPatience)
	defer cancel()
	done, err := c.Prompt(ctx, "q", "hello")
	if err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %+v, %v", done, err)
	}
}

func TestNoProgramIsStartedAfterClose(t *testing.T) {
	t.Parallel()
	c, _, err := startProgram(t, answering(t, "exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	<-c.process.Done()
	before := c.process
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// SetMode may find the program dead just before Close, and then start it.
	if _, err := c.start(t.Context()); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("error %v", err)
	}
	if c.process != before {
		t.Error("another program was started")
	}
}

func TestInvalidLinesNeverEndTheRunner(t *testing.T) {
	t.Parallel()
	const call = `{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"t","name":"Agent","input":{}}]}}`
	for name, lines := range map[string][]string{
		"negative notes":  {call, `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t"}]},"tool_use_result":{"harnessNoteCount":-1}}`},
		"too many notes":  {call, `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t"}]},"tool_use_result":{"harnessNoteCount":5,"harnessTailCount":-5}}`},
		"negative blocks": {`{"type":"stream_event","event":{"type":"message_start","message":{"id":"m"}}}`, `{"type":"stream_event","event":{"type":"content_block_start","index":-9}}`, call},
		"null everywhere": {`null`, `{"type":"assistant","message":null}`, `{"type":"control_response","response":null}`, `{"type":"stream_event","event":null}`},
	} {
		out := agenttest.NewRecorder()
		c := offline(t, out)
		for _, l := range lines {
			c.handle([]byte(l))
		}
		if name == "negative notes" && len(agenttest.Payloads[runnerscripts.ToolCall](t, out.All(), runnerscripts.TypeToolCallUpdate)) != 1 {
			t.Errorf("%s: events\n%s", name, agenttest.Describe(out.All()))
		}
	}
}

func TestBytesThatAreNotUTF8AreReplaced(t *testing.T) {
	t.Parallel()
	out := agenttest.NewRecorder()
	c := offline(t, out)
	c.raw = true
	c.handle([]byte("{\"type\":\"assistant\",\"message\":{\"id\":\"m\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"Bash\",\"input\":{\"command\":\"echo \xff\"}}]}}"))
	calls := agenttest.Payloads[runnerscripts.ToolCall](t, out.All(), runnerscripts.TypeToolCall)
	if len(calls) != 1 || calls[0].Title != "echo \uFFFD" {
		t.Errorf("calls %+v", calls)
	}
	for _, e := range out.All() {
		if !utf8.Valid(e.Payload) {
			t.Errorf("%s has bytes that are not UTF-8: %q", e.Type, e.Payload)
		}
	}
}

func TestHistoryThatCannotBeReadIsNotRemoved(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken disk")
	if _, err := hasMessage(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the disk", err)
	}
}

// hooked is a recorder that calls hook at each change of the mode.
type hooked struct {
	*agenttest.Recorder
	hook func()
}

func (h hooked) Emit(conv string, typ runnerscripts.EventType, payload any) {
	h.Recorder.Emit(conv, typ, payload)
	if typ == runnerscripts.TypeModeUpdate {
		h.hook()
	}
}
