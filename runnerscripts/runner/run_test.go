package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestScriptThatCannotDoItsWorkSaysWhyInItsResult(t *testing.T) {
	s := newSandbox(t)
	good := string(mustJSON(t, s.session()))
	change := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("%s has no %s", good, from)
		}
		return strings.Replace(good, from, to, 1)
	}
	all := []string{rs.SetupSession, rs.ExecuteQuery, rs.ReadTranscript}
	cases := []struct {
		name, in string
		scripts  []string
		code     rs.FailureCode
		says     string
	}{
		{"empty input", "", all, rs.FailInvalidRequest, "Request"},
		{"not JSON", "hi\n", all, rs.FailInvalidRequest, "JSON"},
		{"half a line", good[:20], all, rs.FailInvalidRequest, "JSON"},
		{"another protocol", change(`"protocol":2`, `"protocol":1`), all, rs.FailProtocol, "version 1"},
		{"unknown field", change(`"protocol":2`, `"protocol":2,"promt":"x"`), all, rs.FailInvalidRequest, "promt"},
		{"unknown agent", change(`"script"`, `"hal9000"`), all, rs.FailUnknownAgent, "script"},
		{"unknown mode", change(`"script"`, `"script","permission_mode":"yolo"`), all[:2], rs.FailUnsupported, "yolo"},
		{"command of its own", change(`"script"`, `"script","command":["x"]`), all[:2], rs.FailUnsupported, "command"},
		{"scenario with an unknown field", change(`"script"`, `"script","config":{"trns":[]}`), all[:2], rs.FailInvalidRequest, "trns"},
		{"scenario with a step of two", change(`"script"`, `"script","config":{"turns":[{"steps":[{"text":"a","run":["b"]}]}]}`), all[:2], rs.FailInvalidRequest, "turn 1, step 1"},
		{"scenario file that is missing", change(`"script"`, `"script","config":{"file":"nope.json"}`), all[:2], rs.FailInvalidRequest, "nope.json"},
	}
	for _, c := range cases {
		for _, script := range c.scripts {
			p := start(t, script)
			if _, err := io.WriteString(p.stdin, c.in); err != nil {
				t.Fatal(err)
			}
			p.stdin.Close()
			res := p.end(exitFailed)
			if res.OK || res.Error == nil || res.Error.Code != c.code || !strings.Contains(res.Error.Message, c.says) {
				t.Errorf("%s, %s: %+v, want %s that says %q", script, c.name, res.Error, c.code, c.says)
			}
		}
	}
}

func TestScenarioCanBeAFileInTheWorkspace(t *testing.T) {
	s := newSandbox(t)
	s.agent.Config = json.RawMessage(`{"file":"play.json"}`)
	content := []byte(`{"turns":[{"when":"two","steps":[{"text":"second"}]},{"steps":[{"text":"first"}]}]}`)
	if err := os.WriteFile(s.file("play.json"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := said(converse(t, s, "number two").finish()); got != "second" {
		t.Errorf("said %q", got)
	}
}

func TestPromptOfMegabytesComesThrough(t *testing.T) {
	s := newSandbox(t, `[{"write":{"path":"f","content":"{{prompt}}"}}]`)
	prompt := strings.Repeat("0123456789abcdef", 1<<17)
	events := converse(t, s, prompt).finish()
	if got, err := os.ReadFile(s.file("f")); err != nil || string(got) != prompt {
		t.Errorf("%d bytes were written, %v; want %d", len(got), err, len(prompt))
	}
	if q := payload[rs.QueryStarted](t, of(events, rs.TypeQueryStarted)[0]); q.Prompt != prompt {
		t.Errorf("query_started has %d bytes", len(q.Prompt))
	}
}

func TestTranscriptOfANewSessionIsEmpty(t *testing.T) {
	s := newSandbox(t)
	if tr, events := transcript(t, s); tr.Main != "" || len(tr.Subagents)+len(events) > 0 {
		t.Errorf("%+v, %d events", tr, len(events))
	}
}

func TestCommandLine(t *testing.T) {
	cases := []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{[]string{"version"}, exitOK, "envrunner ", ""},
		{[]string{"--help"}, exitOK, "setup-session", ""},
		{[]string{"--schema"}, exitOK, `"QueryRequest"`, ""},
		{nil, exitUsage, "", "setup-session"},
		{[]string{"setup-sesion"}, exitUsage, "", `"setup-sesion"`},
		{[]string{"version", "now"}, exitUsage, "", "setup-session"},
		{[]string{"guest", "--no-such-flag"}, exitUsage, "", "no-such-flag"},
		{[]string{"guest", "stray"}, exitUsage, "", `"stray"`},
		{[]string{"guest", "--help"}, exitOK, "", "-workspace"},
		{[]string{"guest", "--workspace", "/no/such/folder"}, exitFailed, "", "/no/such/folder"},
	}
	for _, c := range cases {
		var stdout, stderr bytes.Buffer
		got := run(t.Context(), io.NopCloser(strings.NewReader("")), &stdout, &stderr, c.args)
		if got != c.status || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%q: status %d, stdout %.200q, stderr %.200q", c.args, got, &stdout, &stderr)
		}
		if (c.stdout == "") != (stdout.Len() == 0) || (c.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%q: wrote to the wrong stream: stdout %.200q, stderr %.200q", c.args, &stdout, &stderr)
		}
	}
}

func TestBuiltBinaryRunsEveryScript(t *testing.T) {
	s := newSandbox(t)
	if res := startBuilt(t, rs.SetupSession).call(rs.SetupRequest{Session: s.session()}); !res.OK {
		t.Errorf("%+v", res.Error)
	}
	p := startBuilt(t, rs.ExecuteQuery)
	if res := p.call(rs.QueryRequest{Session: s.session(), Prompt: "go"}); !res.OK || !strings.Contains(said(p.seen), "prompt 1") {
		t.Errorf("%+v, said %q", res.Error, said(p.seen))
	}
	p = startBuilt(t, rs.ReadTranscript)
	res := p.call(rs.TranscriptRequest{Session: s.session(), Events: true})
	if !res.OK || !strings.Contains(string(res.Data), "prompt 1") || !strings.Contains(said(p.seen), "prompt 1") {
		t.Errorf("%+v", res)
	}
}

func TestBinaryIsSmallAndStatic(t *testing.T) {
	content, err := os.ReadFile(runnerFile(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(content) > 21<<19 {
		t.Errorf("the binary has %d bytes, more than 10.5 MiB", len(content))
	}
	if bytes.Contains(content, []byte("ld-linux")) {
		t.Error("the binary needs a dynamic linker")
	}
}

// fake is a driver and a conversation that call the functions of a test.
type fake struct {
	start     func(context.Context, agent.Sink) error
	prompt    func(ctx context.Context, text string) (rs.QueryCompleted, error)
	interrupt func()
	setMode   func(ctx context.Context) error
	respond   func(id string) error
	closed    bool
}

func (f *fake) Recipe() rs.Recipe { return rs.Recipe{} }
func (f *fake) Setup(context.Context, rs.SetupRequest) (rs.SetupData, error) {
	panic("set up wrongly")
}

func (f *fake) Replay(context.Context, rs.Session, rs.Transcript, agent.Sink) error { return nil }

func (f *fake) Start(ctx context.Context, _ rs.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if f.start != nil {
		if err := f.start(ctx, out); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *fake) Transcript(context.Context, rs.TranscriptRequest, agent.Sink) (rs.Transcript, error) {
	return rs.Transcript{}, errors.New("unreadable")
}

func (f *fake) Prompt(ctx context.Context, _, text string, _ ...rs.Attachment) (rs.QueryCompleted, error) {
	return f.prompt(ctx, text)
}

func (f *fake) Interrupt(context.Context) error {
	if f.interrupt != nil {
		f.interrupt()
	}
	return nil
}

func (f *fake) Respond(_ context.Context, id string, _ rs.PermissionDecision) error {
	if f.respond == nil {
		return nil
	}
	return f.respond(id)
}

func (f *fake) SetMode(ctx context.Context, _ string) error {
	if f.setMode == nil {
		panic("no modes")
	}
	return f.setMode(ctx)
}
func (f *fake) SetModel(context.Context, string) error { return errors.New("no models") }
func (f *fake) Close() error                           { f.closed = true; return nil }

// runFake runs a script in this process with a fake driver.
func runFake(t *testing.T, f *fake, script string, lines ...any) ([]rs.Event, int, string) {
	t.Helper()
	var in, out, stderr bytes.Buffer
	enc := rs.NewEncoder(&in)
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	a := &app{
		stdin: io.NopCloser(&in), stdout: rs.NewEncoder(&out), stderr: &stderr,
		agents: map[string]agent.Driver{"script": f},
	}
	status := a.script(t.Context(), script)
	dec := rs.NewDecoder(&out, 0)
	var events []rs.Event
	for {
		ev, err := dec.Next()
		if errors.Is(err, io.EOF) {
			return events, status, stderr.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
}

func resultOf(t *testing.T, events []rs.Event) rs.Result {
	t.Helper()
	if len(events) == 0 || events[len(events)-1].Type != rs.TypeResult {
		t.Fatalf("the last line is no result: %s", types(events))
	}
	return payload[rs.Result](t, events[len(events)-1])
}

func TestDriverThatPanicsBecomesAResult(t *testing.T) {
	s := newSandbox(t)
	base := s.session()
	cases := []struct {
		name, script string
		driver       *fake
		req          any
		says         string
	}{
		{"setup", rs.SetupSession, &fake{}, rs.SetupRequest{Session: base}, "set up wrongly"},
		{
			"start", rs.ExecuteQuery, &fake{start: func(context.Context, agent.Sink) error { panic("started wrongly") }},
			rs.QueryRequest{Session: base, Prompt: "a"},
			"started wrongly",
		},
		{
			"prompt", rs.ExecuteQuery, &fake{prompt: func(context.Context, string) (rs.QueryCompleted, error) { panic("prompted wrongly") }},
			rs.QueryRequest{Session: base, Prompt: "a"},
			"prompted wrongly",
		},
	}
	for _, c := range cases {
		events, status, stderr := runFake(t, c.driver, c.script, c.req)
		res := resultOf(t, events)
		if status != exitFailed || res.OK || res.Error.Code != rs.FailInternal || !strings.Contains(res.Error.Message, c.says) {
			t.Errorf("%s: status %d, %+v", c.name, status, res.Error)
		}
		if !strings.Contains(stderr, "goroutine") {
			t.Errorf("%s: stderr has no stack: %q", c.name, stderr)
		}
		if c.name == "prompt" && !c.driver.closed {
			t.Error("the agent was not closed")
		}
	}
}

func TestErrorOfTheDriverIsTheResult(t *testing.T) {
	s := newSandbox(t)
	missing := &rs.ScriptFailure{Code: rs.FailAgentMissing, Message: "install it"}
	f := &fake{start: func(context.Context, agent.Sink) error { return missing }}
	events, status, _ := runFake(t, f, rs.ExecuteQuery, rs.QueryRequest{Session: s.session(), Prompt: "a"})
	if res := resultOf(t, events); status != exitFailed || *res.Error != *missing {
		t.Errorf("status %d, %+v", status, res.Error)
	}
	events, status, _ = runFake(t, f, rs.ReadTranscript, rs.TranscriptRequest{Session: s.session()})
	if res := resultOf(t, events); status != exitFailed || res.Error.Code != rs.FailInternal || res.Error.Message != "unreadable" {
		t.Errorf("status %d, %+v", status, res.Error)
	}
}

func TestSettingThatFailsIsAnErrorEventAndTheConversationGoesOn(t *testing.T) {
	s := newSandbox(t)
	f := &fake{prompt: func(context.Context, string) (rs.QueryCompleted, error) {
		return rs.QueryCompleted{StopReason: rs.StopEndTurn}, nil
	}}
	events, status, _ := runFake(t, f, rs.ExecuteQuery, rs.QueryRequest{Session: s.session()},
		rs.Control{Type: rs.ControlSetMode, Value: "x"}, rs.Control{Type: rs.ControlSetModel, Value: "x"},
		rs.Control{Type: rs.ControlPrompt, Text: "a"})
	if len(of(events, rs.TypeError)) != 2 || len(of(events, rs.TypeQueryCompleted)) != 1 || status != exitOK || !f.closed {
		t.Errorf("status %d, events %s", status, types(events))
	}
}

// A host reads no longer line, and a kept sandbox would have it for ever: all that follow the query read it.
func TestAnEventThatIsTooLongEndsTheAgent(t *testing.T) {
	long := strings.Repeat("\x01", 6<<20) // JSON has six bytes for one
	for typ, result := range map[rs.EventType]json.RawMessage{rs.TypeAgentMessage: nil, rs.TypeQueryCompleted: json.RawMessage(`"` + strings.Repeat(`\u0001`, len(long)) + `"`)} {
		t.Run(string(typ), func(t *testing.T) {
			var out agent.Sink
			h := hold(t.Context(), t, &fake{
				start: func(_ context.Context, to agent.Sink) error { out = to; return nil },
				prompt: func(ctx context.Context, _ string) (rs.QueryCompleted, error) {
					if result != nil {
						return rs.QueryCompleted{StopReason: rs.StopEndTurn, ResultData: result}, nil
					}
					out.Emit(rs.MainConversation, typ, rs.ContentChunk{Content: rs.Content{Type: "text", Text: long}})
					<-ctx.Done()
					return rs.QueryCompleted{}, context.Cause(ctx)
				},
			})
			events := h.rest(exitFailed)
			if res := resultOf(t, events); res.OK || !strings.Contains(res.Error.Message, "the event "+string(typ)) || !strings.Contains(res.Error.Message, "limit") {
				t.Errorf("after %s the result is %+v", types(events), res)
			}
		})
	}
}

func TestSlowReaderHoldsTheAgentBack(t *testing.T) {
	s := newSandbox(t, `[{"text":"one two three four five six seven eight"},{"write":{"path":"f","content":"x"}}]`)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe() // no buffer: each line waits for its reader
	status := make(chan int, 1)
	go func() {
		status <- run(t.Context(), inR, outW, io.Discard, []string{rs.ExecuteQuery})
		outW.Close()
	}()
	if err := rs.NewEncoder(inW).Encode(rs.QueryRequest{Session: s.session(), Prompt: "go"}); err != nil {
		t.Fatal(err)
	}
	dec := rs.NewDecoder(outR, 0)
	for {
		ev, err := dec.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == rs.TypeAgentMessage {
			break // the second chunk is not read yet
		}
	}
	if _, err := os.Stat(s.file("f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the agent went on although nobody read: %v", err)
	}
	inW.Close()
	for {
		if _, err := dec.Next(); err != nil {
			break
		}
	}
	if got := <-status; got != exitOK {
		t.Errorf("status %d", got)
	}
	if _, err := os.Stat(s.file("f")); err != nil {
		t.Error(err)
	}
}

func TestClosedInputEndsAReadThatWaits(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	in, err := newInput(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("first"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := in.Read(buf); err != nil || string(buf[:n]) != "first" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	ended := make(chan error)
	go func() {
		_, err := in.Read(buf)
		ended <- err
	}()
	in.Close()
	if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v, want io.ErrClosedPipe", err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}
