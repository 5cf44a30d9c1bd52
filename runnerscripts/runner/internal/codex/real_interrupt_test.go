package codex

import (
	"bufio"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAnInterruptedThoughtIsTakenBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.PromptAsync(c, "slow-think")
	if err := f.API.WaitHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentThought))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Fatalf("ended with %q, %v", done.StopReason, err)
	}
	if blocks := agenttest.Fold(t, f.Out.All()).Blocks; len(blocks) != 1 {
		t.Errorf("blocks: %s", agenttest.Show(t, blocks))
	}
	f.SameAsTranscript()
}

func TestInterruptEndsTheRunningCommandAndTellsItsOutput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	c := f.start()
	fifo := f.WorkspaceFile("fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	wait := f.PromptAsync(c, "run-command `echo partial output; exec sh -c 'echo $$ > fifo; exec tail -f /dev/null'`")
	pid, err := bufio.NewReader(openFIFO(t, fifo, "")).ReadString('\n') // blocks until the command runs
	if err != nil {
		t.Fatal(err)
	}
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeToolCall))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	endedOnce(t, f.Out.All(), "partial output\n")
	agenttest.WaitForExit(t, strings.TrimSpace(pid))
	f.SameAsTranscript()
	f.Prompt(c, "plain-text")
	endedOnce(t, f.Out.All(), "partial output\n")
}

// endedOnce fails unless the events contain exactly one update of a tool call, which has failed
// with that output.
func endedOnce(t *testing.T, events []runnerscripts.Event, output string) {
	t.Helper()
	calls := agenttest.Payloads[runnerscripts.ToolCall](t, events, runnerscripts.TypeToolCallUpdate)
	if len(calls) != 1 || calls[0].Status != runnerscripts.ToolFailed || !reflect.DeepEqual(calls[0].Content, textContent(output)) {
		t.Errorf("not one call that has failed with the output %q:\n%s", output, agenttest.Describe(events))
	}
}

func TestInterruptEndsAQueryWhoseSubagentStillWorks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.PromptAsync(c, "subagent `touch asked`")
	f.Asked() // by the subagent
	f.Out.Wait(t.Context(), t, func(e runnerscripts.Event) bool { return e.Text() == "reported." })
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	f.Prompt(c, "plain-text")
	if f.Exists("asked") {
		t.Error("the command ran")
	}
}
