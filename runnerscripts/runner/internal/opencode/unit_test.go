package opencode

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

func TestLaterIDsAreGreater(t *testing.T) {
	now := time.UnixMilli(1795276258894)
	id := newID("msg", now)
	// The program created msg_1fecdbe4e001... in that millisecond.
	if !strings.HasPrefix(id, "msg_1fecdbe4e000") || len(id) != len("msg_1fecdbe4e001WvgudoCz8b05K9") {
		t.Errorf("id %q", id)
	}
	if later := newID("msg", now.Add(time.Millisecond)); later <= id {
		t.Errorf("%q, and later %q", id, later)
	}
	if again := newID("msg", now); again == id {
		t.Errorf("%q twice", id)
	}
}

func TestOutcomeOfAQuery(t *testing.T) {
	failedAs := func(name string, status int) *messageError {
		f := &messageError{Name: name}
		f.Data.StatusCode = status
		return f
	}
	tests := []struct {
		name string
		q    query
		last messageInfo
		stop runnerscripts.StopReason
		code runnerscripts.FailureCode
	}{
		{"a normal end", query{}, messageInfo{Finish: "stop"}, runnerscripts.StopEndTurn, ""},
		{"an end after a rejection", query{}, messageInfo{Finish: "tool-calls"}, runnerscripts.StopEndTurn, ""},
		{"the model's limit", query{}, messageInfo{Finish: "length"}, runnerscripts.StopMaxTokens, ""},
		{"a refusal", query{}, messageInfo{Finish: "content-filter"}, runnerscripts.StopRefusal, ""},
		{"an interrupt", query{cancelled: true}, messageInfo{Error: failedAs(errAborted, 0)}, runnerscripts.StopCancelled, ""},
		{"an interrupt before any answer", query{cancelled: true}, messageInfo{}, runnerscripts.StopCancelled, ""},
		{"an interrupt that came too late", query{cancelled: true}, messageInfo{Finish: "stop"}, runnerscripts.StopEndTurn, ""},
		{"too many turns", query{limited: true}, messageInfo{Error: failedAs(errAborted, 0)}, runnerscripts.StopMaxRequests, ""},
		{"too many retries", query{gaveUp: tooManyRetries(6, "busy")}, messageInfo{}, "", runnerscripts.FailAPI},
		{"an API error", query{}, messageInfo{Error: failedAs("APIError", 400)}, "", runnerscripts.FailAPI},
		{"a key that is missing", query{}, messageInfo{Error: failedAs("ProviderAuthError", 0)}, "", runnerscripts.FailAPI},
		{"a context that is full", query{}, messageInfo{Error: failedAs("ContextOverflowError", 0)}, "", runnerscripts.FailAPI},
		{"an answer that is too long", query{}, messageInfo{Error: failedAs("MessageOutputLengthError", 0)}, runnerscripts.StopMaxTokens, ""},
		{"any other error", query{problem: failedAs("UnknownError", 0)}, messageInfo{}, "", runnerscripts.FailQuery},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.last.ID = "msg_1"
			tt.q.answers, tt.q.last = map[string]messageInfo{"msg_1": tt.last}, "msg_1"
			stop, err := tt.q.outcome()
			if stop != tt.stop {
				t.Errorf("stop reason %q, want %q", stop, tt.stop)
			}
			if tt.code == "" && err != nil || tt.code != "" && !agenttest.HasCode(err, tt.code) {
				t.Errorf("error %v, want the code %q", err, tt.code)
			}
		})
	}
}

func TestQueryEndsWhenTheProgramIsDoneWithIt(t *testing.T) {
	done, open := messageInfo{Time: span{Completed: 1}}, messageInfo{}
	tests := []struct {
		name string
		q    query
		ends bool
	}{
		{"idle and answered", query{idle: true, answers: map[string]messageInfo{"a": done}}, true},
		{"answered and not idle", query{answers: map[string]messageInfo{"a": done}}, false},
		{"idle before the last answer is written", query{idle: true, answers: map[string]messageInfo{"a": done, "b": open}}, false},
		{"idle of the query before", query{idle: true}, false},
		{"idle after an interrupt that came first", query{idle: true, cancelled: true}, true},
		{"idle after an error without an answer", query{idle: true, problem: &messageError{}}, true},
	}
	for _, tt := range tests {
		tt.q.done = make(chan struct{})
		tt.q.settle()
		tt.q.settle() // a second call does nothing
		if tt.q.finished != tt.ends {
			t.Errorf("%s: ended %v", tt.name, tt.q.finished)
		}
	}
}

func TestConfigurationIsTheUsersOverTheDrivers(t *testing.T) {
	s := runnerscripts.Session{Paths: primitives.PathsIn("/s")}
	s.Agent.MaxTurns = 3
	s.Agent.Config = []byte(`{"share":"auto","agent":{"plan":{"steps":9,"color":"#fff"}},"permission":{"bash":{"z*":"deny","*":"allow"},"edit":"deny"}}`)
	data, err := configuration(s, runnerscripts.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(data, &conf); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"autoupdate": `false`, "share": `"auto"`, "disabled_providers": `["opencode"]`,
		"agent":      `{"build":{"steps":3},"plan":{"color":"#fff","permission":{"edit":"deny"},"steps":9}}`,
		"permission": `{"bash":{"z*":"deny","*":"allow"},"edit":"deny"}`, // the order matters
	} {
		if got := string(conf[key]); got != want {
			t.Errorf("%s:\n got %s\nwant %s", key, got, want)
		}
	}
	s.Agent.Config, s.Agent.Model = nil, "opencode/free"
	if data, err = configuration(s, runnerscripts.Profile{}); err != nil || strings.Contains(string(data), "disabled_providers") {
		t.Errorf("with a model of OpenCode's own: %s, %v", data, err)
	}
}

func TestEnvironmentIsTheSessionsOwn(t *testing.T) {
	t.Setenv("OF_THE_SANDBOX", "kept")
	t.Setenv("HOME", "/home/of/somebody")
	t.Setenv("XDG_DATA_HOME", "/home/of/somebody/data")
	s := runnerscripts.Session{Paths: primitives.PathsIn("/s")}
	env := environment(s, map[string]string{"OPENCODE_SERVER_PASSWORD": "secret"})
	for key, want := range map[string]string{
		"OF_THE_SANDBOX": "kept", "HOME": s.Paths.Home, "XDG_DATA_HOME": s.Paths.Home + "/.local/share",
		"OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_SERVER_PASSWORD": "secret",
	} {
		if got := child.Lookup(env, key); got != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
	s.Agent.TrustWorkspace = true
	if got := child.Lookup(environment(s, nil), "OPENCODE_DISABLE_PROJECT_CONFIG"); got != "" {
		t.Errorf("a trusted workspace: %q", got)
	}
}

func TestRequestThatOvertookItsToolCallWaitsForIt(t *testing.T) {
	const asked = `{"type":"permission.asked","properties":{"id":"per_1","sessionID":"ses_1","permission":"bash","patterns":["x"],` +
		`"metadata":{"command":"x"},"always":["x *"],"tool":{"messageID":"msg_2","callID":"call_1"}}}`
	const running = `{"type":"message.part.updated","properties":{"part":{"id":"prt_1","sessionID":"ses_1","messageID":"msg_2","type":"tool",` +
		`"tool":"bash","callID":"call_1","state":{"status":"running","input":{"command":"x","description":"d"}}}}}`
	const message = `{"type":"message.updated","properties":{"info":{"id":"msg_2","sessionID":"ses_1","role":"assistant"}}}`
	for name, lines := range map[string][]string{
		"in order":  {message, running, asked},
		"overtaken": {message, asked, running},
		"only the request, until the heart beats": {asked, `{"type":"server.heartbeat","properties":{}}`},
	} {
		out := agenttest.NewRecorder()
		c := offline(out, "ses_1")
		for _, line := range lines {
			c.handle(t.Context(), []byte(line))
		}
		asked := agenttest.Payloads[runnerscripts.PermissionRequest](t, out.All(), runnerscripts.TypePermissionRequest)
		if len(asked) != 1 || asked[0].ToolCall.Title != "x" || len(asked[0].Options) != 3 {
			t.Errorf("%s: %s", name, agenttest.Describe(out.All()))
		}
		last := out.All()[len(out.All())-1]
		if last.Type != runnerscripts.TypePermissionRequest {
			t.Errorf("%s: the request is not the last event:\n%s", name, agenttest.Describe(out.All()))
		}
	}
}

func TestTextThatIsRemovedIsTakenBack(t *testing.T) {
	out := agenttest.NewRecorder()
	c := offline(out, "ses_1")
	for _, line := range []string{
		`{"type":"message.updated","properties":{"info":{"id":"m","sessionID":"ses_1","role":"assistant"}}}`,
		`{"type":"message.part.updated","properties":{"part":{"id":"p","sessionID":"ses_1","messageID":"m","type":"text","text":"","time":{"start":1}}}}`,
		`{"type":"message.part.delta","properties":{"sessionID":"ses_1","partID":"p","field":"text","delta":"half a"}}`,
		`{"type":"message.part.removed","properties":{"partID":"p"}}`,
	} {
		c.handle(t.Context(), []byte(line))
	}
	if got := strings.TrimSpace(agenttest.Said(t, out.All())); got != "" {
		t.Errorf("the agent said %q", got)
	}
}

func TestReasoningIsPartOfTheOutput(t *testing.T) {
	tr := newTranslator(agenttest.NewRecorder(), "/w")
	tr.conversations["ses_1"] = runnerscripts.MainConversation
	tr.message(message{Info: messageInfo{ID: "m", SessionID: "ses_1", Role: roleAssistant}, Parts: []part{
		{ID: "p", SessionID: "ses_1", MessageID: "m", Type: partStepFinish, Cost: 0.5, Tokens: &tokens{Input: 1, Output: 2, Reasoning: 3}},
	}})
	if want := (runnerscripts.Usage{InputTokens: 1, OutputTokens: 5, CostUSD: 0.5}); tr.spent != want {
		t.Errorf("usage %+v", tr.spent)
	}
}

func TestTaskResultIsWhatTheSubagentSaid(t *testing.T) {
	for output, want := range map[string]string{
		"<task id=\"ses_1\" state=\"completed\">\n<task_result>\na\n</task_result> b\n</task_result>\n</task>": "a\n</task_result> b",
		"something else": "something else",
	} {
		if got := taskResult(output); got != want {
			t.Errorf("%q: %q", output, got)
		}
	}
}

func TestToolsAreThoseThatTheProfileLeaves(t *testing.T) {
	t.Parallel()
	o := offer{tools: []string{"invalid", "bash", "read", "edit", "write", "apply_patch", "webfetch"}}
	for denied, want := range map[string]string{
		"": "bash read edit write apply_patch webfetch", "webfetch": "bash read edit write apply_patch",
		"bash(rm *)": "bash read edit write apply_patch webfetch", "write": "bash read webfetch", "*": "",
	} {
		var p runnerscripts.Profile
		if denied != "" {
			p.DeniedTools = []string{denied}
		}
		if got := strings.Join(o.toolsFor(p), " "); got != want {
			t.Errorf("without %q: %q", denied, got)
		}
	}
}

func TestAttachmentsMustBeWhatTheModelTakes(t *testing.T) {
	t.Parallel()
	o := offer{takes: map[string]inputs{"p/blind": {}, "p/sees": {Image: true}, "p/reads": {PDF: true}}}
	image := runnerscripts.Attachment{Name: "a.png", MediaType: "image/png"}
	pdf := runnerscripts.Attachment{Name: "a.pdf", MediaType: "application/pdf"}
	text := runnerscripts.Attachment{Name: "a.txt", MediaType: "text/plain"}
	for _, c := range []struct {
		model string
		list  []runnerscripts.Attachment
		says  string // empty: they are taken
	}{
		{"p/blind", []runnerscripts.Attachment{text}, ""},
		{"p/blind", []runnerscripts.Attachment{text, image}, "the model p/blind of OpenCode does not take a.png (image/png)"},
		{"p/sees", []runnerscripts.Attachment{image}, ""},
		{"p/sees", []runnerscripts.Attachment{pdf}, "does not take a.pdf"},
		{"p/reads", []runnerscripts.Attachment{pdf}, ""},
		{"", []runnerscripts.Attachment{image, pdf}, ""},
	} {
		err := o.checkAttachments(c.model, c.list)
		if c.says == "" && err != nil || c.says != "" && (!agenttest.HasCode(err, runnerscripts.FailUnsupported) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s, %v: %v", c.model, c.list, err)
		}
	}
}

func TestPartsOfAPromptAreInOrder(t *testing.T) {
	t.Parallel()
	now := time.Now()
	last := newID("prt", now) // that of the text
	for _, p := range fileParts(make([]runnerscripts.Attachment, 20), now) {
		if p.ID <= last {
			t.Fatalf("%s comes after %s", p.ID, last)
		}
		last = p.ID
	}
}

// A patch moves files too, and the model may add a path to the input that the program does not read.
func TestARequestHasAllFilesOfItsPatch(t *testing.T) {
	t.Parallel()
	var r permissionAsked
	if err := json.Unmarshal([]byte(`{"permission":"edit","patterns":["src/a"],"metadata":{"files":[{"filePath":"/ws/src/a","movePath":"/ws/secret/a"},{"filePath":"/ws/b"}]}}`), &r); err != nil {
		t.Fatal(err)
	}
	tr := &translator{workspace: "/ws"}
	p := part{Tool: "apply_patch"}
	p.State.Input = json.RawMessage(`{"patchText":"...","filePath":"src/a","path":"c"}`)
	var got []string
	for _, l := range withFiles(tr.toolCall(p), newQuestion("main", r).call.Locations).Locations {
		got = append(got, l.Path)
	}
	if want := []string{"/ws/src/a", "/ws/secret/a", "/ws/b"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}
