package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestSignalEndsAScriptThatWaitsForItsRequest(t *testing.T) {
	for _, script := range []string{rs.SetupSession, rs.ExecuteQuery, rs.ReadTranscript} {
		t.Run(script, func(t *testing.T) {
			p := start(t, script)
			// Half a request: after the write, the script waits for the rest.
			if _, err := io.WriteString(p.stdin, strings.Repeat(" ", 1<<20)); err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if res := p.end(exitFailed); res.OK || !strings.Contains(res.Error.Message, "signal") {
				t.Errorf("result %+v", res)
			}
		})
	}
}

// held is an execute-query with a fake driver, run in this process, and the host's side of it.
type held struct {
	t      *testing.T
	in     *rs.Encoder
	stdin  io.Closer
	out    *rs.Decoder
	status chan int
}

func hold(ctx context.Context, t *testing.T, f *fake) *held {
	t.Helper()
	return holdRequest(ctx, t, f, rs.QueryRequest{Prompt: "go", PromptID: "first"})
}

func holdRequest(ctx context.Context, t *testing.T, f *fake, req rs.QueryRequest) *held {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	h := &held{t: t, in: rs.NewEncoder(inW), stdin: inW, out: rs.NewDecoder(outR, 0), status: make(chan int, 1)}
	a := &app{stdin: inR, stdout: rs.NewEncoder(outW), stderr: io.Discard, agents: map[string]agent.Driver{"script": f}}
	go func() {
		h.status <- a.script(ctx, rs.ExecuteQuery)
		outW.Close()
	}()
	req.Session, req.InterruptGraceMS = newSandbox(t).session(), cmp.Or(req.InterruptGraceMS, neverMS)
	h.send(req)
	return h
}

// holdStarting returns while the agent is starting. Only ctx ends the start.
func holdStarting(t *testing.T) *held {
	t.Helper()
	starting := make(chan struct{})
	h := hold(t.Context(), t, &fake{start: func(ctx context.Context, _ agent.Sink) error {
		close(starting)
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	<-starting
	return h
}

func (h *held) send(v any) {
	h.t.Helper()
	if err := h.in.Encode(v); err != nil {
		h.t.Fatal(err)
	}
}

// until reads to the next event of a type.
func (h *held) until(typ rs.EventType) rs.Event {
	h.t.Helper()
	for {
		ev, err := h.out.Next()
		if err != nil {
			h.t.Fatalf("no %s came: %v", typ, err)
		}
		if ev.Type == typ {
			return ev
		}
	}
}

// rest reads all remaining events and checks the exit status.
func (h *held) rest(status int) []rs.Event {
	h.t.Helper()
	var events []rs.Event
	for {
		ev, err := h.out.Next()
		if err != nil {
			break
		}
		events = append(events, ev)
	}
	if got := <-h.status; got != status {
		h.t.Errorf("status %d, %s", got, events[len(events)-1].Payload)
	}
	h.stdin.Close()
	return events
}

func TestShutdownEndsAnAgentThatStarts(t *testing.T) {
	h := holdStarting(t)
	h.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
	h.send(rs.Control{Type: rs.ControlShutdown})
	events := h.rest(exitOK)
	done := of(events, rs.TypeQueryCompleted)
	if len(done) != 2 || done[0].QueryID != "first" || done[1].QueryID != "second" {
		t.Errorf("every accepted prompt needs an end: %s", types(events))
	}
	if res := resultOf(t, events); !res.OK {
		t.Errorf("result %+v", res.Error)
	}
}

func TestInterruptStopsAnAgentThatStarts(t *testing.T) {
	h := holdStarting(t)
	h.send(rs.Control{Type: rs.ControlInterrupt})
	events := h.rest(exitOK)
	done := of(events, rs.TypeQueryCompleted)
	if len(done) != 1 || payload[rs.QueryCompleted](t, done[0]).StopReason != rs.StopCancelled {
		t.Errorf("the query was not cancelled: %s", types(events))
	}
	if res := resultOf(t, events); !res.OK {
		t.Errorf("result %+v", res.Error)
	}
}

// A prompt that arrives while an interrupted start ends was not interrupted. It gets no event, so
// that its sender gives it to the next agent.
func TestPromptBehindTheInterruptOfAStartIsNotCancelled(t *testing.T) {
	starting, stopping, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h := hold(t.Context(), t, &fake{start: func(ctx context.Context, _ agent.Sink) error {
		close(starting)
		<-ctx.Done()
		close(stopping)
		<-stop
		return context.Cause(ctx)
	}})
	<-starting
	h.send(rs.Control{Type: rs.ControlInterrupt, ID: "first"})
	<-stopping
	h.until(rs.TypeQueryCompleted)
	h.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
	h.send(rs.Control{Type: rs.ControlInterrupt, ID: "none"}) // after the prompt was added
	close(stop)
	events := h.rest(exitOK)
	for _, ev := range events {
		if ev.QueryID == "second" {
			t.Errorf("%s of the second query: %s", ev.Type, ev.Payload)
		}
	}
	if res := resultOf(t, events); !res.OK {
		t.Errorf("result %+v", res.Error)
	}
}

// The start continues if the agent has more to do than the interrupted prompt.
func TestInterruptWhileTheAgentStartsStopsOnePrompt(t *testing.T) {
	starting, start := make(chan struct{}), make(chan struct{})
	var prompts []string
	h := hold(t.Context(), t, &fake{
		start: func(ctx context.Context, _ agent.Sink) error {
			close(starting)
			select {
			case <-start:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
		prompt: func(_ context.Context, text string) (rs.QueryCompleted, error) {
			prompts = append(prompts, text)
			return rs.QueryCompleted{StopReason: rs.StopEndTurn}, nil
		},
	})
	<-starting
	h.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
	h.send(rs.Control{Type: rs.ControlInterrupt})
	h.send(rs.Control{Type: rs.ControlPrompt, ID: "third", Text: "c"}) // after the interrupt was handled
	h.stdin.Close()
	close(start)
	events := h.rest(exitOK)
	done := of(events, rs.TypeQueryCompleted)
	cancelled := ""
	for _, ev := range done {
		if payload[rs.QueryCompleted](t, ev).StopReason == rs.StopCancelled {
			cancelled += ev.QueryID
		}
	}
	if len(done) != 3 || cancelled != "first" || !slices.Equal(prompts, []string{"b", "c"}) {
		t.Errorf("the agent was given %q, cancelled was %q: %s", prompts, cancelled, types(events))
	}
}

func TestShutdownEndsAnAgentThatTakesASetting(t *testing.T) {
	setting := make(chan struct{})
	f := &fake{
		setMode: func(ctx context.Context) error {
			close(setting)
			<-ctx.Done()
			return context.Cause(ctx)
		},
		prompt: func(ctx context.Context, _ string) (rs.QueryCompleted, error) {
			<-ctx.Done()
			return rs.QueryCompleted{}, context.Cause(ctx)
		},
	}
	h := hold(t.Context(), t, f)
	go func() { // its events are read below
		h.send(rs.Control{Type: rs.ControlSetMode, Value: "x"})
		<-setting
		h.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
		h.send(rs.Control{Type: rs.ControlShutdown})
	}()
	events := h.rest(exitOK)
	done := of(events, rs.TypeQueryCompleted)
	if len(done) != 2 || done[1].QueryID != "second" || len(of(events, rs.TypeError)) != 0 {
		t.Errorf("every accepted prompt needs an end, and there is no error: %s", types(events))
	}
}

// stoppable is a driver whose query runs until it is interrupted.
func stoppable() *fake {
	stopped := make(chan struct{})
	var out agent.Sink
	return &fake{
		start: func(_ context.Context, s agent.Sink) error { out = s; return nil },
		prompt: func(ctx context.Context, text string) (rs.QueryCompleted, error) {
			out.Emit(rs.MainConversation, rs.TypeAgentMessage, rs.ContentChunk{BlockID: text})
			select {
			case <-stopped:
				return rs.QueryCompleted{StopReason: rs.StopCancelled}, nil
			case <-ctx.Done():
				return rs.QueryCompleted{}, context.Cause(ctx)
			}
		},
		interrupt: func() { close(stopped) }, // panics if it is called twice
	}
}

func TestInterruptDoesNotWaitForASetting(t *testing.T) {
	setting := make(chan struct{})
	f := stoppable()
	f.setMode = func(ctx context.Context) error {
		close(setting)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	h := hold(t.Context(), t, f)
	h.until(rs.TypeAgentMessage)
	h.send(rs.Control{Type: rs.ControlSetMode, Value: "x"})
	<-setting
	h.send(rs.Control{Type: rs.ControlInterrupt, ID: "first"})
	h.send(rs.Control{Type: rs.ControlInterrupt, ID: "first"})
	if done := payload[rs.QueryCompleted](t, h.until(rs.TypeQueryCompleted)); done.StopReason != rs.StopCancelled {
		t.Errorf("stop reason %s", done.StopReason)
	}
	h.send(rs.Control{Type: rs.ControlShutdown})
	h.rest(exitOK)
}

func TestInterruptOfAQueuedPromptLeavesTheRunningOneAlone(t *testing.T) {
	h := hold(t.Context(), t, stoppable())
	h.until(rs.TypeAgentMessage)
	h.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
	h.send(rs.Control{Type: rs.ControlInterrupt, ID: "second"})
	for _, id := range []string{"second", "first"} {
		ev := h.until(rs.TypeQueryCompleted)
		if done := payload[rs.QueryCompleted](t, ev); ev.QueryID != id || done.StopReason != rs.StopCancelled {
			t.Errorf("%s ended with %s, want %s", ev.QueryID, done.StopReason, id)
		}
		h.send(rs.Control{Type: rs.ControlInterrupt, ID: "first"})
	}
	h.stdin.Close()
	h.rest(exitOK)
}

func TestAgentThatDoesNotStopIsKilledWhenItsGraceIsOver(t *testing.T) {
	f := stoppable()
	f.interrupt = nil
	h := holdRequest(t.Context(), t, f, rs.QueryRequest{Prompt: "go", PromptID: "first", InterruptGraceMS: 1})
	h.until(rs.TypeAgentMessage)
	h.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
	h.send(rs.Control{Type: rs.ControlInterrupt, ID: "first"})
	events := h.rest(exitFailed)
	failed := of(events, rs.TypeQueryFailed)
	if len(failed) != 2 || failed[0].QueryID != "first" || failed[1].QueryID != "second" {
		t.Fatalf("events %s", types(events))
	}
	for _, ev := range failed {
		if f := payload[rs.QueryFailed](t, ev); f.Code != rs.FailAgent || !strings.Contains(f.Message, "interrupt") {
			t.Errorf("%s: %+v", ev.QueryID, f)
		}
	}
	if !f.closed {
		t.Error("the agent was not closed")
	}
}

func TestQueryThatASignalEndsSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := hold(ctx, t, &fake{prompt: func(ctx context.Context, _ string) (rs.QueryCompleted, error) {
		cancel()
		<-ctx.Done()
		return rs.QueryCompleted{}, context.Cause(ctx)
	}})
	events := h.rest(exitFailed)
	failed := of(events, rs.TypeQueryFailed)
	if len(failed) != 1 || !strings.Contains(string(failed[0].Payload), "signal") {
		t.Errorf("the query ended with %+v", failed)
	}
	if res := resultOf(t, events); res.OK || !strings.Contains(res.Error.Message, "signal") {
		t.Errorf("result %+v", res)
	}
}

// The input may end at the same time as a question.
func TestQuestionThatIsAnsweredAlreadyIsNoErrorAtTheEndOfTheInput(t *testing.T) {
	responded := make(chan struct{})
	f := &fake{respond: func(id string) error {
		close(responded)
		return invalid("no question %q waits (any more)", id)
	}}
	var out agent.Sink
	f.start = func(_ context.Context, s agent.Sink) error { out = s; return nil }
	f.prompt = func(context.Context, string) (rs.QueryCompleted, error) {
		out.Emit(rs.MainConversation, rs.TypePermissionRequest, rs.PermissionRequest{ID: "q"})
		<-responded
		return rs.QueryCompleted{StopReason: rs.StopEndTurn}, nil
	}
	h := hold(t.Context(), t, f)
	if err := h.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if events := h.rest(exitOK); len(of(events, rs.TypeError)) != 0 {
		t.Errorf("events %s", types(events))
	}
}

func TestARejectionAtTheEndOfTheInputSaysThatTheQuestionWaitedForAProgram(t *testing.T) {
	f := &fake{}
	var out agent.Sink
	f.start = func(_ context.Context, s agent.Sink) error { out = s; return nil }
	responded := make(chan struct{})
	f.respond = func(string) error { close(responded); return nil }
	f.prompt = func(context.Context, string) (rs.QueryCompleted, error) {
		out.Emit(rs.MainConversation, rs.TypePermissionRequest, rs.PermissionRequest{ID: "q"})
		<-responded
		return rs.QueryCompleted{StopReason: rs.StopEndTurn}, nil
	}
	h := hold(t.Context(), t, f)
	if err := h.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	logs := of(h.rest(exitOK), rs.TypeLog)
	if len(logs) != 1 || payload[rs.Log](t, logs[0]).Message != `permission request "q" was rejected: it waited for an answer, but `+noProgram {
		t.Errorf("logs %+v", logs)
	}
}

func TestSetupDoesNotHangOnAFIFO(t *testing.T) {
	s := newSandbox(t)
	if err := syscall.Mkfifo(s.file("f"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, res := call(t, rs.SetupSession, rs.SetupRequest{
		Session: s.session(), Files: []rs.WorkspaceFile{{Path: "f", Content: []byte("x")}},
	})
	if res.OK || res.Error.Code != rs.FailInvalidRequest || !strings.Contains(res.Error.Message, "regular file") {
		t.Errorf("result %+v", res)
	}
}

func TestAWithdrawnPromptEndsAnAgentThatStarts(t *testing.T) {
	h := holdStarting(t)
	h.send(rs.Control{Type: rs.ControlWithdraw, ID: "first"})
	// The conversation may have ended before this is read.
	if err := h.in.Encode(rs.Control{Type: rs.ControlPrompt, ID: "first", Text: "was on its way"}); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	events := h.rest(exitOK)
	if started := of(events, rs.TypeQueryStarted); len(started) != 0 {
		t.Errorf("a query that was withdrawn: %s", types(events))
	}
	if res := resultOf(t, events); !res.OK {
		t.Errorf("result %+v", res.Error)
	}
}
