package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

// holding is a command that writes a line to the FIFO "alive" when it runs, and keeps the FIFO open
// with a child until all its processes are dead.
const holding = `{"run":["sh","-c","exec 3>alive; echo ready >&3; sleep 600 & wait"]}`

// alive creates that FIFO. The returned function waits for the command's line and returns the
// reader.
func alive(t *testing.T, s *sandbox) func() io.Reader {
	t.Helper()
	if err := syscall.Mkfifo(s.file("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() io.Reader {
		// A FIFO that is open for both does not wait for the command, which may fail to start.
		both, err := os.OpenFile(s.file("alive"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer both.Close()
		line := make([]byte, len("ready\n"))
		err = both.SetReadDeadline(time.Now().Add(tooLong))
		if err == nil {
			_, err = io.ReadFull(both, line)
		}
		if err != nil || string(line) != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		r, err := os.Open(s.file("alive"))
		if err == nil {
			t.Cleanup(func() { r.Close() })
			err = r.SetReadDeadline(time.Now().Add(tooLong))
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// dead waits until no process holds the FIFO open.
func dead(t *testing.T, r io.Reader) {
	t.Helper()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

func stopOf(t *testing.T, p *process) rs.StopReason {
	t.Helper()
	return payload[rs.QueryCompleted](t, p.until(rs.TypeQueryCompleted)).StopReason
}

func TestInterruptKillsTheRunningCommandWithItsChildren(t *testing.T) {
	s := newSandbox(t, "["+holding+`,{"text":"never"}]`, `[{"text":"next"}]`)
	open := alive(t, s)
	p := converse(t, s, "go")
	r := open()
	p.send(rs.Control{Type: rs.ControlInterrupt})
	if got := stopOf(t, p); got != rs.StopCancelled {
		t.Errorf("stop reason %s", got)
	}
	dead(t, r)
	updates := of(p.seen, rs.TypeToolCallUpdate)
	if last := payload[rs.ToolCall](t, updates[len(updates)-1]); last.Status != rs.ToolFailed {
		t.Errorf("the tool call ended as %+v", last)
	}
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "b"})
	if got := said(p.finish()); got != "next" {
		t.Errorf("said %q", got)
	}
}

func TestInterruptRightBehindItsPromptIsNotLost(t *testing.T) {
	for range 10 {
		s := newSandbox(t, `[{"delay_ms":600000}]`)
		p := converse(t, s, "")
		p.send(rs.Control{Type: rs.ControlPrompt, Text: "go"})
		p.send(rs.Control{Type: rs.ControlInterrupt})
		if got := stopOf(t, p); got != rs.StopCancelled {
			t.Errorf("stop reason %s", got)
		}
		p.finish()
	}
}

func TestInterruptWithoutAQueryDoesNothing(t *testing.T) {
	s := newSandbox(t, `[{"text":"fine"}]`)
	p := converse(t, s, "")
	p.send(rs.Control{Type: rs.ControlInterrupt})
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "go"})
	if got := stopOf(t, p); got != rs.StopEndTurn {
		t.Errorf("stop reason %s", got)
	}
	if events := p.finish(); said(events) != "fine" || len(of(events, rs.TypeError)) > 0 {
		t.Errorf("events %s", types(events))
	}
}

func TestPermissionAnswers(t *testing.T) {
	const steps = `[{"ask":{"write":{"path":"f","content":"old"}}},{"text":"after"}]`
	cases := []struct {
		name     string
		decision rs.PermissionDecision
		content  string // of f; empty if f must not exist
		shows    string // in the last update of the tool call
		stop     rs.StopReason
	}{
		{"allowed by option", rs.PermissionDecision{OptionID: "allow_once"}, "old", `"completed"`, rs.StopEndTurn},
		{"allowed by kind", rs.PermissionDecision{Kind: rs.AllowAlways}, "old", `"completed"`, rs.StopEndTurn},
		{
			"rewritten",
			rs.PermissionDecision{Kind: rs.AllowOnce, UpdatedInput: []byte(`{"path":"f","content":"new"}`)},
			"new", `"completed"`, rs.StopEndTurn,
		},
		{"rejected", rs.PermissionDecision{Kind: rs.RejectOnce, Message: "not today"}, "", "rejected: not today", rs.StopEndTurn},
		{"rejected and interrupted", rs.PermissionDecision{Kind: rs.RejectAlways, Interrupt: true}, "", "rejected", rs.StopCancelled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSandbox(t, steps)
			p := converse(t, s, "go")
			asked := payload[rs.PermissionRequest](t, p.until(rs.TypePermissionRequest))
			if len(asked.Options) != 4 || asked.ToolCall.Name != "write" {
				t.Errorf("asked %+v", asked)
			}
			p.send(rs.Control{Type: rs.ControlPermission, ID: asked.ID, Decision: &c.decision})
			resolved := payload[rs.PermissionResolved](t, p.until(rs.TypePermissionResolved))
			if resolved.ID != asked.ID || resolved.Kind.Allows() != (c.content != "") {
				t.Errorf("resolved %+v", resolved)
			}
			if got := stopOf(t, p); got != c.stop {
				t.Errorf("stop reason %s, want %s", got, c.stop)
			}
			updates := of(p.finish(), rs.TypeToolCallUpdate)
			if last := string(updates[len(updates)-1].Payload); !strings.Contains(last, c.shows) {
				t.Errorf("the last update %s does not show %s", last, c.shows)
			}
			got, err := os.ReadFile(s.file("f"))
			if string(got) != c.content || (c.content == "") != errors.Is(err, fs.ErrNotExist) {
				t.Errorf("f is %q, %v; want %q", got, err, c.content)
			}
		})
	}
}

func TestAnswerForAlwaysIsNotAskedAgain(t *testing.T) {
	for kind, content := range map[rs.PermissionKind]string{rs.AllowAlways: "2", rs.RejectAlways: ""} {
		s := newSandbox(t, `[{"ask":{"write":{"path":"f","content":"1"}}},{"ask":{"write":{"path":"f","content":"2"}}}]`)
		p := converse(t, s, "go")
		asked := payload[rs.PermissionRequest](t, p.until(rs.TypePermissionRequest))
		p.send(rs.Control{Type: rs.ControlPermission, ID: asked.ID, Decision: &rs.PermissionDecision{Kind: kind}})
		if n := len(of(p.finish(), rs.TypePermissionRequest)); n != 1 {
			t.Errorf("%s: asked %d times", kind, n)
		}
		if got, _ := os.ReadFile(s.file("f")); string(got) != content {
			t.Errorf("%s: f is %q, want %q", kind, got, content)
		}
	}
}

func TestAnswerThatIsNoneIsAnErrorEventAndTheQuestionStays(t *testing.T) {
	s := newSandbox(t, `[{"ask":{"run":["true"]}}]`)
	p := converse(t, s, "go")
	id := payload[rs.PermissionRequest](t, p.until(rs.TypePermissionRequest)).ID
	for _, c := range []rs.Control{
		{ID: "unknown", Decision: &rs.PermissionDecision{Kind: rs.AllowOnce}},
		{ID: id},
		{Decision: &rs.PermissionDecision{Kind: rs.AllowOnce}},
	} {
		c.Type = rs.ControlPermission
		p.send(c)
		if e := payload[rs.ErrorInfo](t, p.until(rs.TypeError)); e.Code != rs.FailInvalidRequest || e.Message == "" {
			t.Errorf("%+v: %+v", c, e)
		}
	}
	p.send(rs.Control{Type: rs.ControlPermission, ID: id, Decision: &rs.PermissionDecision{Kind: rs.AllowOnce}})
	if got := stopOf(t, p); got != rs.StopEndTurn {
		t.Errorf("stop reason %s", got)
	}
	p.finish()
}

func TestAnswerThatTheAgentCannotUseRejects(t *testing.T) {
	for name, d := range map[string]rs.PermissionDecision{
		"no such option":                {OptionID: "maybe"},
		"neither option nor kind":       {},
		"an input without a command":    {Kind: rs.AllowOnce, UpdatedInput: []byte(`{"command":[]}`)},
		"an input with another field":   {Kind: rs.AllowOnce, UpdatedInput: []byte(`{"comand":["x"]}`)},
		"an input with a rejection":     {Kind: rs.RejectOnce, UpdatedInput: []byte(`{"command":["x"]}`)},
		"an input that the tool denies": {Kind: rs.AllowAlways, UpdatedInput: []byte(`[]`)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t, `[{"ask":{"write":{"path":"f","content":"1"}}},{"text":"after"}]`)
			p := converse(t, s, "go")
			id := payload[rs.PermissionRequest](t, p.until(rs.TypePermissionRequest)).ID
			p.send(rs.Control{Type: rs.ControlPermission, ID: id, Decision: &d})
			if got := stopOf(t, p); got != rs.StopEndTurn {
				t.Errorf("stop reason %s", got)
			}
			events := p.finish()
			resolved := of(events, rs.TypePermissionResolved)
			if len(resolved) != 1 || payload[rs.PermissionResolved](t, resolved[0]).Kind != rs.RejectOnce {
				t.Errorf("resolved: %v", resolved)
			}
			failed := of(events, rs.TypeError)
			if len(failed) != 1 || payload[rs.ErrorInfo](t, failed[0]).Code != rs.FailInvalidRequest {
				t.Errorf("errors: %v", failed)
			}
			if _, err := os.Stat(s.file("f")); !errors.Is(err, fs.ErrNotExist) || said(events) != "after" {
				t.Errorf("said %q, the file: %v", said(events), err)
			}
		})
	}
}

func TestInterruptWithdrawsAPermissionRequest(t *testing.T) {
	s := newSandbox(t, `[{"ask":{"run":["true"]}}]`)
	p := converse(t, s, "go")
	id := payload[rs.PermissionRequest](t, p.until(rs.TypePermissionRequest)).ID
	p.send(rs.Control{Type: rs.ControlInterrupt})
	resolved := payload[rs.PermissionResolved](t, p.until(rs.TypePermissionResolved))
	if resolved != (rs.PermissionResolved{ID: id, Reason: "cancelled"}) {
		t.Errorf("resolved %+v", resolved)
	}
	if got := stopOf(t, p); got != rs.StopCancelled {
		t.Errorf("stop reason %s", got)
	}
	p.finish()
}

func TestEndOfInputFinishesQueuedPromptsAndRejectsPendingRequests(t *testing.T) {
	s := newSandbox(t, `[{"ask":{"write":{"path":"f","content":"1"}}},{"text":"{{turn}} "}]`)
	p := converse(t, s, "a")
	for range 3 {
		p.send(rs.Control{Type: rs.ControlPrompt, Text: "more"})
	}
	events := p.finish()
	if got := said(events); got != "1 2 3 4 " {
		t.Errorf("said %q", got)
	}
	ids := map[string]bool{}
	for _, ev := range of(events, rs.TypeQueryCompleted) {
		ids[ev.QueryID] = true
	}
	if len(ids) != 4 || !ids["first"] {
		t.Errorf("completed: %v", ids)
	}
	if _, err := os.Stat(s.file("f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unanswered request was taken for allowed: %v", err)
	}
}

func TestModeAndModelChangeWhileItRuns(t *testing.T) {
	s := newSandbox(t, `[{"ask":{"write":{"path":"f","content":"{{model}}"}}},{"ask":{"run":["true"]}}]`)
	s.agent.Model = "m1"
	p := converse(t, s, "")
	p.send(rs.Control{Type: rs.ControlSetMode, Value: "acceptEdits"})
	if m := payload[rs.ModeUpdate](t, p.until(rs.TypeModeUpdate)); m.CurrentModeID != "acceptEdits" {
		t.Errorf("%+v", m)
	}
	p.send(rs.Control{Type: rs.ControlSetModel, Value: "m2"})
	if o := payload[rs.OptionsChanged](t, p.until(rs.TypeOptionsChanged)); o != (rs.OptionsChanged{Model: "m2", Mode: "acceptEdits"}) {
		t.Errorf("%+v", o)
	}
	p.send(rs.Control{Type: rs.ControlSetMode, Value: "yolo"})
	if e := payload[rs.ErrorInfo](t, p.until(rs.TypeError)); e.Code != rs.FailUnsupported || !strings.Contains(e.Message, "yolo") {
		t.Errorf("%+v", e)
	}
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "go"})
	asked := payload[rs.PermissionRequest](t, p.until(rs.TypePermissionRequest))
	if asked.ToolCall.Name != "run" {
		t.Errorf("asked for %s", asked.ToolCall.Name)
	}
	p.send(rs.Control{Type: rs.ControlSetMode, Value: "bypassPermissions"})
	p.send(rs.Control{Type: rs.ControlPermission, ID: asked.ID, Decision: &rs.PermissionDecision{Kind: rs.RejectOnce}})
	p.until(rs.TypeQueryCompleted)
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "again"})
	if n := len(of(p.finish(), rs.TypePermissionRequest)); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
	if got, err := os.ReadFile(s.file("f")); string(got) != "m2" {
		t.Errorf("f is %q, %v", got, err)
	}
}

func TestControlLineThatMakesNoSenseIsAnErrorEvent(t *testing.T) {
	s := newSandbox(t, `[{"text":"fine"}]`)
	p := converse(t, s, "")
	for line, code := range map[string]rs.FailureCode{
		`nonsense`: rs.FailInvalidRequest, `{"type":"dance"}`: rs.FailInvalidRequest, `{"type":"prompt"}`: rs.FailInvalidRequest,
		`{"type":"prompt","txt":"a"}`: rs.FailInvalidRequest, `{"type":"credential","id":"a","value":"s3cret"}`: rs.FailUnsupported,
	} {
		if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if e := payload[rs.ErrorInfo](t, p.until(rs.TypeError)); e.Code != code || e.Message == "" || strings.Contains(e.Message, "s3cret") {
			t.Errorf("%s: %+v, want %s", line, e, code)
		}
	}
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "go"})
	if got := said(p.finish()); got != "fine" {
		t.Errorf("said %q", got)
	}
}

func TestShutdownEndsTheRunningQueryAndIsAGoodEnd(t *testing.T) {
	s := newSandbox(t, "["+holding+"]")
	open := alive(t, s)
	p := converse(t, s, "go")
	r := open()
	p.send(rs.Control{Type: rs.ControlPrompt, ID: "queued", Text: "b"})
	p.send(rs.Control{Type: rs.ControlShutdown})
	if res := p.end(exitOK); !res.OK {
		t.Errorf("result %+v", res.Error)
	}
	dead(t, r)
	done := of(p.seen, rs.TypeQueryCompleted)
	if len(done) != 2 || done[1].QueryID != "queued" {
		t.Errorf("every accepted prompt needs an end: %s", types(p.seen))
	}
}

// lastWords is an executor that writes a file when it gets a shutdown.
const lastWords = `while read -r line; do
	case $line in *'"type":"shutdown"'*) sleep 0.2; echo saved > saved; exit 0;; esac
	echo '{"type":"turn_complete","result":"done"}'
done`

func TestShutdownLetsAnAgentThatWaitsWriteItsHistory(t *testing.T) {
	s := newSandbox(t)
	s.agent = rs.Agent{Name: "command", Config: []byte(`{"type":"x","command":["/bin/sh","executor"],"lifecycle":"persistent"}`)}
	if err := os.WriteFile(s.file("executor"), []byte(lastWords), 0o600); err != nil {
		t.Fatal(err)
	}
	p := converse(t, s, "go")
	p.until(rs.TypeQueryCompleted)
	p.send(rs.Control{Type: rs.ControlShutdown})
	if res := p.end(exitOK); !res.OK {
		t.Errorf("result %+v", res.Error)
	}
	if _, err := os.Stat(s.file("saved")); err != nil {
		t.Errorf("the agent was not left to end by itself: %v", err)
	}
}

func TestSignalEndsTheAgentAndTheResultSaysSo(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		s := newSandbox(t, "["+holding+"]")
		open := alive(t, s)
		p := converse(t, s, "go")
		r := open()
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		res := p.end(exitFailed)
		if res.OK || !strings.Contains(res.Error.Message, "signal") {
			t.Errorf("%v: result %+v", sig, res)
		}
		dead(t, r)
	}
}

func TestReaderThatGoesAwayEndsTheAgent(t *testing.T) {
	s := newSandbox(t, `[{"run":["true"]},{"delay_ms":5},{"text":"x"},`+holding+`]`)
	p := converse(t, s, "")
	p.until(rs.TypeSessionInitialized)
	p.stdout.Close()
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "go"})
	if got := <-p.status; got != exitFailed {
		t.Errorf("exit status %d, want %d and no death by a signal; stderr: %s", got, exitFailed, &p.stderr)
	}
}

func TestMaxTurnsEndsTheQuery(t *testing.T) {
	s := newSandbox(t, `[{"run":["true"]},{"run":["true"]},{"write":{"path":"f","content":"x"}}]`)
	s.agent.MaxTurns = 2
	p := converse(t, s, "go")
	if got := stopOf(t, p); got != rs.StopMaxRequests {
		t.Errorf("stop reason %s", got)
	}
	p.finish()
	if _, err := os.Stat(s.file("f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a third tool was used: %v", err)
	}
}

func TestAPromptIsWithdrawnBeforeItComes(t *testing.T) {
	p := start(t, rs.ExecuteQuery)
	p.send(rs.Control{Type: rs.ControlWithdraw, ID: "first"},
		rs.QueryRequest{Session: newSandbox(t).session(), Prompt: "go", PromptID: "first"})
	p.end(exitFailed)
	if len(of(p.seen, rs.TypeQueryStarted)) != 0 {
		t.Errorf("it ran: %s", types(p.seen))
	}

	p = converse(t, newSandbox(t), "go")
	p.until(rs.TypeQueryCompleted)
	p.send(rs.Control{Type: rs.ControlWithdraw, ID: "second"},
		rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "was on its way"})
	if res := p.end(exitOK); !res.OK || len(of(p.seen, rs.TypeQueryStarted)) != 1 {
		t.Errorf("result %+v after %s", res.Error, types(p.seen))
	}
}

func TestAPromptThatTheAgentHasIsNotWithdrawn(t *testing.T) {
	s := newSandbox(t, "["+holding+"]")
	open := alive(t, s)
	p := converse(t, s, "go")
	open()
	p.send(rs.Control{Type: rs.ControlWithdraw, ID: "first"})
	p.send(rs.Control{Type: rs.ControlInterrupt, ID: "first"})
	p.until(rs.TypeQueryCompleted)
	p.send(rs.Control{Type: rs.ControlWithdraw, ID: "first"})
	p.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
	if ev := p.until(rs.TypeQueryStarted); ev.QueryID != "second" {
		t.Errorf("%s runs", ev.QueryID)
	}
	p.send(rs.Control{Type: rs.ControlShutdown})
	p.end(exitOK)
}
