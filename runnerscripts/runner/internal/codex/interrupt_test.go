package codex

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// interrupted returns the command of a program whose first turn runs a command and is interrupted,
// as in Codex. The program runs the script asks before the interrupt and the script more after it.
// The request to end commands has the ID 5.
func interrupted(t *testing.T, asks, more string) []string {
	t.Helper()
	return answering(t, `note() { say '{"method":"'"$1"'","params":{"threadId":"`+fakeThread+`",'"$2"'}}'; }
command='"item":{"type":"commandExecution","id":"call","command":"make"'
read -r turn
say '{"id":3,"result":{}}'
say "$started"
note item/started "$command,\"status\":\"inProgress\"}"
`+asks+`
note warning '"message":"the command runs"'
read -r interrupt
say '{"id":4,"result":{}}'
note turn/completed '"turn":{"id":"t","status":"interrupted"}'
`+more)
}

const (
	commandEnds = `note item/completed "$command,\"status\":\"failed\",\"aggregatedOutput\":\"half of it\",\"exitCode\":-1}"` + "\n"
	programEnds = "read -r end\n"
)

// openFIFO opens a FIFO and writes text. It does not wait for the program at the other end, which may have
// failed. A read fails after untilHang.
func openFIFO(t *testing.T, name, text string) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.SetReadDeadline(time.Now().Add(untilHang)); err != nil {
		t.Fatal(err)
	}
	return f
}

// interruptCommand starts such a program with d, runs a query and interrupts it.
func interruptCommand(t *testing.T, d Driver, argv []string) (*conversation, *agenttest.Recorder) {
	t.Helper()
	c, out, err := startProgramWith(t, d, argv)
	if err != nil {
		t.Fatal(err)
	}
	interruptQuery(t, c, out, func() {})
	return c, out
}

// interruptQuery starts a query and interrupts it after the program's first log message. It calls
// then before it waits for the end of the query.
func interruptQuery(t *testing.T, c *conversation, out *agenttest.Recorder, then func()) {
	t.Helper()
	ended := make(chan error, 1)
	var done runnerscripts.QueryCompleted
	go func() {
		var err error
		done, err = c.Prompt(t.Context(), "q", "hello")
		ended <- err
	}()
	out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeLog))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	then()
	if err := <-ended; err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %+v, %v", done, err)
	}
}

func TestOutputOfAnInterruptedCommandIsToldBeforeTheEndOfTheQuery(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{
		"before the reply": "read -r clean\n" + commandEnds + `say '{"id":5,"result":{}}'` + "\n",
		"after the reply":  "read -r clean\n" + `say '{"id":5,"result":{}}'` + "\n" + commandEnds,
		"unasked":          commandEnds + "read -r clean\n" + `say '{"id":5,"result":{}}'` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, out := interruptCommand(t, Driver{ending: untilHang}, interrupted(t, "", more+programEnds))
			endedOnce(t, out.All(), "half of it")
		})
	}
}

func TestNothingIsToldOfAnInterruptedCommandAfterTheEndOfTheQuery(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"refused":          `say '{"id":5,"error":{"code":-32601,"message":"unknown method"}}'`,
		"never answered":   "",
		"answered, no end": `say '{"id":5,"result":{}}'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fifo := filepath.Join(t.TempDir(), "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			// Two of the programs never end the command.
			_, out := interruptCommand(t, Driver{ending: 100 * time.Millisecond}, interrupted(t, "", "read -r clean\n"+reply+"\nread -r go < "+fifo+"\n"+
				commandEnds+`note warning '"message":"late"'`+"\n"+programEnds))
			before := len(out.All())
			openFIFO(t, fifo, "go\n")
			out.Wait(t.Context(), t, func(e runnerscripts.Event) bool {
				return e.Type == runnerscripts.TypeLog && agenttest.Payload[runnerscripts.Log](t, e).Message == "late"
			})
			late := out.All()[before:]
			if len(late) != 1 {
				t.Errorf("after the end of the query:\n%s", agenttest.Describe(late))
			}
			endedOnce(t, out.All(), "")
		})
	}
}

// The program never reports the end of a command that has not started.
func TestInterruptedCommandThatWasNotAllowedYetIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	_, out := interruptCommand(t, Driver{ending: untilHang}, interrupted(t,
		`say '{"id":0,"method":"`+askCommand+`","params":{"threadId":"`+fakeThread+`","itemId":"call","command":"make"}}'`,
		"read -r clean\n"+`say '{"id":5,"result":{}}'`+"\n"+programEnds))
	endedOnce(t, out.All(), "")
	place := func(typ runnerscripts.EventType) int {
		return slices.IndexFunc(out.All(), agenttest.OfType(typ))
	}
	// The end of the turn must report the failure, before the permission request is withdrawn.
	// endCommands would report it after that.
	if place(runnerscripts.TypeToolCallUpdate) > place(runnerscripts.TypePermissionResolved) {
		t.Errorf("events:\n%s", agenttest.Describe(out.All()))
	}
}

func TestCallOfATurnThatHasEndedIsNotEndedAgain(t *testing.T) {
	t.Parallel()
	out := agenttest.NewRecorder()
	tr := newTranslator(out)
	n := itemNote{Item: item{Type: itemCommand, ID: "call", Command: "make"}}
	tr.started(runnerscripts.MainConversation, n)
	tr.endAll()
	n.Item.Status, n.Item.AggregatedOutput = statusCompleted, "all of it"
	tr.completed(runnerscripts.MainConversation, n)
	endedOnce(t, out.All(), "")

	// A later call may have the same ID: some models restart their numbering in each turn.
	tr.started(runnerscripts.MainConversation, n)
	tr.completed(runnerscripts.MainConversation, n)
	calls := agenttest.Payloads[runnerscripts.ToolCall](t, out.All(), runnerscripts.TypeToolCallUpdate)
	if len(calls) != 2 || calls[1].Status != runnerscripts.ToolCompleted {
		t.Errorf("events:\n%s", agenttest.Describe(out.All()))
	}
}
