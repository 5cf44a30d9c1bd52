package acp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

func TestCrashFailsTheQueryAndTheNextOneGoesOn(t *testing.T) {
	t.Parallel()
	for prompt, word := range map[string]string{"crash": "exit status 3: the real reason", "leave": "it ended"} {
		t.Run(prompt, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "load")
			c := f.Start()
			f.Prompt(c, "say plum")
			if _, err := c.Prompt(t.Context(), "q", prompt); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), word) {
				t.Errorf("error %v", err)
			}
			f.Prompt(c, "remember")
			if got := f.Said(); got != "plum\nsay plum | "+prompt+"\n" {
				t.Errorf("the agent said %q", got)
			}
			f.SameAsTranscript()
		})
	}
}

func TestGarbageIsReportedAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.Raw = true
	f.Prompt(f.Start(), "garbage")
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 6 || f.Said() != "still here\n" {
		t.Errorf("the agent said %q, logs: %s", f.Said(), agenttest.Show(t, logs))
	}
	found := false
	for _, e := range f.Out.All() {
		if !utf8.Valid(e.Payload) {
			t.Errorf("%s has bytes that are not UTF-8: %q", e.Type, e.Payload)
		}
		found = found || e.Type == runnerscripts.TypeRaw && string(e.Payload) == `"Warning: this is no JSON"`
	}
	if !found {
		t.Error("the line as it was is not among the raw ones")
	}
}

func TestUnknownUpdatesArePassedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.Prompt(f.Start(), "unknown")
	e := f.Out.Wait(t.Context(), t, agenttest.OfType("of_a_newer_version"))
	if string(e.Payload) != `{"x":{"y":1}}` {
		t.Errorf("payload %s", e.Payload)
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || !strings.Contains(string(logs[0].Data), "vendor/notice") || f.Said() != "still here\n" {
		t.Errorf("the agent said %q, logs: %+v", f.Said(), logs)
	}
}

func TestAnAgentDoesNotSpeakForTheRunner(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	done := f.Prompt(f.Start(), "forge")
	if done.StopReason != runnerscripts.StopEndTurn || f.Said() != "still here\n" {
		t.Errorf("it ended with %q, the agent said %q", done.StopReason, f.Said())
	}
	logs := 0
	for _, e := range f.Out.All() {
		switch e.Type {
		case runnerscripts.TypeLog:
			logs++
		case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed, runnerscripts.TypePermissionResolved,
			runnerscripts.TypeTranscriptChanged, runnerscripts.TypeSessionIdle, runnerscripts.TypeResult:
			t.Errorf("%s was passed on", e.Type)
		}
	}
	if logs != 7 {
		t.Errorf("%d logs, want one for each update and one for the reason", logs)
	}
}

func TestRequestsThatAreNotSupportedAreAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.Prompt(f.Start(), "read")
	if got := f.Said(); !strings.Contains(got, "-32601") {
		t.Errorf("the agent got %q", got)
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || !strings.Contains(logs[0].Message, "fs/read_text_file") {
		t.Errorf("logs: %+v", logs)
	}
}

// slowSink blocks for a while at the first message. The agent's further output must wait for it.
type slowSink struct {
	*agenttest.Recorder
	first sync.Once
}

func (s *slowSink) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	if typ == runnerscripts.TypeAgentMessage {
		s.first.Do(func() { <-time.After(300 * time.Millisecond) })
	}
	s.Recorder.EmitAt(at, conv, typ, payload)
}

func TestAFloodIsReadAtTheSpeedOfItsReader(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session}, &slowSink{Recorder: f.Out})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	f.Prompt(c, "flood")
	var want strings.Builder
	for n := range 20_000 {
		fmt.Fprintf(&want, "%d,", n)
	}
	if f.Said() != want.String()+"\n" {
		t.Errorf("the agent said %d bytes, want %d", len(f.Said()), want.Len()+1)
	}
}

func TestLongMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume")
	c := f.Start()
	f.Prompt(c, "huge")
	if got := len(f.Said()); got != 12<<20+1 {
		t.Errorf("the agent said %d bytes", got)
	}
	f.Prompt(c, "huge-reply")
	f.Prompt(c, "say still here")
	if !strings.HasSuffix(f.Said(), "still here\n") {
		t.Error("the session does not go on")
	}
}

func TestAgentThatIgnoresAnInterruptIsKilled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume")
	f.driver.cancel = 500 * time.Millisecond
	c := f.Start()
	wait := f.PromptAsync(c, "deaf")
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	f.Prompt(c, "say still here")
}

func TestErrorsOfTheAgentFailTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	first := inner(c).peer
	for range 2 {
		if _, err := c.Prompt(t.Context(), "q", "fail"); !agenttest.HasCode(err, runnerscripts.FailQuery) || !strings.Contains(err.Error(), "no luck") {
			t.Errorf("error %v", err)
		}
	}
	f.Prompt(c, "say still here")
	if inner(c).peer != first {
		t.Error("the agent was started again")
	}
	if done := f.Prompt(c, "refuse"); done.StopReason != runnerscripts.StopRefusal {
		t.Errorf("stop reason %q", done.StopReason)
	}
	f.Prompt(c, "open")
	calls := agenttest.Payloads[runnerscripts.ToolCall](t, f.Out.All(), runnerscripts.TypeToolCallUpdate)
	if len(calls) != 1 || calls[0].ToolCallID != "call-open" || calls[0].Status != runnerscripts.ToolFailed {
		t.Errorf("the open call: %+v", calls)
	}
}

func TestEndOfTheContextEndsTheAgent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Prompt(ctx, "q", "hang")
		ended <- err
	}()
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestCloseEndsARunningQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	wait := f.PromptAsync(c, "ask")
	f.Asked()
	for range 2 { // the second call does nothing
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) {
		t.Errorf("error %v", err)
	}
	if _, err := c.Prompt(t.Context(), "q", "say x"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("a prompt after close: %v", err)
	}
}

func TestStartThatFailsSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		offers string
		change func(*fixture)
		code   runnerscripts.FailureCode
		word   string
	}{
		"another version": {"v2", func(*fixture) {}, runnerscripts.FailAgent, "version 2"},
		"not logged in":   {"auth", func(*fixture) {}, runnerscripts.FailAPI, "agent.env"},
		"wrong log-in": {"auth", func(f *fixture) {
			f.Session.Agent.Config = []byte(`{"auth_method":"magic"}`)
		}, runnerscripts.FailAgent, "log-in"},
		"no command": {"", func(f *fixture) { f.Session.Agent.Command = nil }, runnerscripts.FailInvalidRequest, "agent.command"},
		"not installed": {"", func(f *fixture) {
			f.Session.Agent.Command = []string{"no-such-program"}
		}, runnerscripts.FailAgentMissing, "agent.command"},
		"unknown config": {"", func(f *fixture) {
			f.Session.Agent.Config = []byte(`{"auth":"x"}`)
		}, runnerscripts.FailInvalidRequest, "auth_method"},
		"system prompt": {"", func(f *fixture) { f.Session.Agent.SystemPrompt = "x" }, runnerscripts.FailUnsupported, "agent.system_prompt"},
		"turn limit":    {"", func(f *fixture) { f.Session.Agent.MaxTurns = 2 }, runnerscripts.FailUnsupported, "agent.max_turns"},
		"unknown mode": {"modes", func(f *fixture) {
			f.Session.Agent.PermissionMode = "none"
		}, runnerscripts.FailInvalidRequest, "[ask code]"},
		"no mode that asks": {"modes,never-asks", func(*fixture) {}, runnerscripts.FailInvalidRequest, "leave permissions out, and set agent.permission_mode to one of its modes: [build plan]"},
		"no such option":    {"config,never-asks", func(*fixture) {}, runnerscripts.FailInvalidRequest, "leave permissions out, and set agent.permission_mode to one of its modes: [build plan]"},
		"not an agent": {"", func(f *fixture) {
			f.Session.Agent.Command = []string{"/bin/sh", "-c", "echo hello; echo why >&2; exit 7"}
		}, runnerscripts.FailAgent, "exit status 7: why"},
		"never answers": {"", func(f *fixture) {
			f.driver.patience = 50 * time.Millisecond
			f.Session.Agent.Command = []string{"/bin/sh", "-c", "exec sleep 600"}
		}, runnerscripts.FailAgent, "50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, tt.offers)
			tt.change(f)
			if _, err := f.TryStart(); !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestLogInWithTheConfiguredMethod(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "auth")
	f.Session.Agent.Config = []byte(`{"auth_method":"token"}`)
	f.Prompt(f.Start(), "say hello")
}

func TestRecordThatACrashCutIsReadAndGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume")
	c := f.Start()
	f.Prompt(c, "say plum")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	tr := f.SameAsTranscript()
	agenttest.WriteFile(t, record.File(f.Session), tr.Main+`{"time":"2026-01-01T00:00:00Z","type":"user_mess`)
	f.Prompt(f.Start(), "remember")
	f.SameAsTranscript()
}

// FuzzUpdate checks that no update of the agent causes a panic or an unreadable event.
func FuzzUpdate(f *testing.F) {
	for _, s := range []string{
		`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}}`,
		`{"sessionUpdate":"tool_call","toolCallId":"t","status":"pending"}`,
		`{"sessionUpdate":"usage_update","used":1,"cost":{"amount":1,"currency":"USD"}}`,
		`{"sessionUpdate":"plan","entries":[]}`, `{"sessionUpdate":"x"}`, `null`, `{"sessionUpdate":"tool_call","content":null}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, update []byte) {
		out := agenttest.NewRecorder()
		c := &conversation{
			cfg: Config{Out: out, Program: "it"}, translate: newTranslator(out, true), permissions: agent.Permissions[*question]{Out: out},
			progress: make(chan struct{}, 1),
		}
		c.updates.emit = c.said
		c.updates.release()
		c.translate.prompt("hello")
		c.notified("session/update", append(append([]byte(`{"sessionId":"s","update":`), update...), '}'))
		c.translate.takeBack()
		c.translate.endCalls()
		agenttest.Fold(t, out.All())
	})
}

var _ agent.Sink = (*slowSink)(nil)
