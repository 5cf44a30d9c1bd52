package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	acp "github.com/coder/acp-go-sdk"
)

// shown is what an editor shows of an update: its kind and text, and the ID of its message.
type shown struct{ kind, text, id string }

// shownOf returns the messages and tool calls in updates, each as a whole, in the order of their beginnings.
func shownOf(updates []acp.SessionUpdate) []shown {
	var list []shown
	add := func(kind, text string, id *string) {
		at := slices.IndexFunc(list, func(s shown) bool { return id != nil && s.kind == kind && s.id == *id })
		if at < 0 {
			list = append(list, shown{kind: kind})
			at = len(list) - 1
			if id != nil {
				list[at].id = *id
			}
		}
		list[at].text += text
	}
	for _, u := range updates {
		switch {
		case u.UserMessageChunk != nil:
			add("user", u.UserMessageChunk.Content.Text.Text, u.UserMessageChunk.MessageId)
		case u.AgentMessageChunk != nil:
			add("agent", u.AgentMessageChunk.Content.Text.Text, u.AgentMessageChunk.MessageId)
		case u.AgentThoughtChunk != nil:
			add("thought", u.AgentThoughtChunk.Content.Text.Text, u.AgentThoughtChunk.MessageId)
		case u.ToolCall != nil:
			id := string(u.ToolCall.ToolCallId)
			add("tool", u.ToolCall.Title, &id)
		case u.Plan != nil:
			add("plan", u.Plan.Entries[0].Content, nil)
		}
	}
	return list
}

// load loads a session and returns the updates that came before the answer.
func (e *editor) load(id acp.SessionId, dir string) []acp.SessionUpdate {
	e.t.Helper()
	before := len(e.of(id))
	if _, err := e.LoadSession(e.ctx(), acp.LoadSessionRequest{SessionId: id, Cwd: dir, McpServers: []acp.McpServer{}}); err != nil {
		e.t.Fatal(err)
	}
	return e.of(id)[before:]
}

func TestAConversationSurvivesTheEditor(t *testing.T) {
	alone(t)
	scenario := file(t, "s.json", `{"turns":[
		{"when":"work","steps":[
			{"thought":"Let me see."},{"plan":{"entries":[{"content":"write it"}]}},{"text":"You said {{prompt}}."},
			{"write":{"path":"made.txt","content":"hello\n"}},{"text":"Done."}]},
		{"steps":[{"text":"turn {{turn}}"}]}
	]}`)
	first := startEditor(t, "--scenario", scenario)
	id, dir := first.session()
	first.session() // nothing is said in it
	first.say(id, "work well")
	live := shownOf(first.of(id))
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	if code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, []string{"sessions", "ls", "--json"}); code != exitOK || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), string(id)) {
		t.Errorf("%d, %s: the sessions are\n%s", code, &errOut, &out)
	}

	second := startEditor(t, "--scenario", scenario)
	second.folders = append(second.folders, dir)
	elsewhere := second.folder()
	for at, want := range map[string]int{"": 1, dir: 1, elsewhere: 0} {
		req := acp.ListSessionsRequest{}
		if at != "" {
			req.Cwd = &at
		}
		list, err := second.ListSessions(second.ctx(), req)
		if err != nil || len(list.Sessions) != want {
			t.Fatalf("the sessions of %q are %+v, %v", at, list, err)
		}
		if want == 1 && (list.Sessions[0].SessionId != id || list.Sessions[0].Cwd != dir || *list.Sessions[0].Title != "work well" || list.Sessions[0].UpdatedAt == nil) {
			t.Errorf("the session is %+v", list.Sessions[0])
		}
	}
	replay := shownOf(second.load(id, dir))
	if len(replay) == 0 || replay[0].kind != "user" || replay[0].text != "work well" || !slices.Equal(replay[1:], live) {
		t.Errorf("said was\n%q, and replayed is\n%q", live, replay)
	}
	if again := shownOf(second.load(id, dir)); !slices.Equal(again, replay) {
		t.Errorf("replayed the second time is\n%q, not\n%q", again, replay)
	}
	before := len(second.of(id))
	second.say(id, "and?")
	if news := shownOf(second.of(id)[before:]); len(news) != 1 || news[0].text != "turn 2" {
		t.Errorf("it goes on with %q", news)
	}
	if err := second.end(); err != nil {
		t.Fatal(err)
	}

	third := startEditor(t, "--scenario", scenario)
	if _, err := third.ResumeSession(third.ctx(), acp.ResumeSessionRequest{SessionId: id, Cwd: dir}); err != nil {
		t.Fatal(err)
	}
	third.say(id, "once more")
	if news := shownOf(third.of(id)); len(news) != 1 || news[0].text != "turn 3" {
		t.Errorf("it goes on with %q", news)
	}
}

func TestAClosedSessionIsStored(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"text":"fine"}]}]}`))
	id, dir := e.session()
	e.say(id, "go")
	if _, err := e.CloseSession(e.ctx(), acp.CloseSessionRequest{SessionId: id}); err != nil {
		t.Fatal(err)
	}
	checkNobodyWorksIn(t, dir)
	if got := shownOf(e.load(id, dir)); len(got) != 2 { // a closed session is stored
		t.Errorf("it has said %q", got)
	}
}

func TestASessionBelongsToOneEditor(t *testing.T) {
	alone(t)
	scenario := file(t, "s.json", `{"turns":[{"steps":[{"text":"fine"}]}]}`)
	first := startEditor(t, "--scenario", scenario)
	id, dir := first.session()
	first.say(id, "go")
	second := startEditor(t, "--scenario", scenario)
	_, err := second.LoadSession(second.ctx(), acp.LoadSessionRequest{SessionId: id, Cwd: dir, McpServers: []acp.McpServer{}})
	checkRefused(t, err, codeInvalidRequest, "")
	if e, ok := errors.AsType[*acp.RequestError](err); !ok || !reflect.DeepEqual(e.Data, map[string]any{"code": "session_locked"}) {
		t.Errorf("the error is %+v", e)
	}
	if stop := first.say(id, "go"); stop != acp.StopReasonEndTurn {
		t.Errorf("stopped because of %s", stop)
	}
	if err := first.end(); err != nil {
		t.Error(err)
	}
	if got := shownOf(second.load(id, dir)); len(got) != 4 {
		t.Errorf("the other editor gets %q", got)
	}
}

func TestAnEditorChoosesOptions(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"ask":{"write":{"path":"asked.txt","content":"x"}}}]}]}`))
	e.permit = func(context.Context, acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
		t.Error("the agent asked")
		return acp.NewRequestPermissionOutcomeCancelled()
	}
	dir := e.folder()
	begun, err := e.NewSession(e.ctx(), acp.NewSessionRequest{Cwd: dir, McpServers: []acp.McpServer{}})
	if err != nil {
		t.Fatal(err)
	}
	mode := func(options []acp.SessionConfigOption) acp.SessionConfigValueId {
		for _, o := range options {
			if o.Select != nil && o.Select.Id == "mode" && *o.Select.Category == "mode" && len(*o.Select.Options.Ungrouped) == 3 {
				return o.Select.CurrentValue
			}
		}
		return ""
	}
	if got := mode(begun.ConfigOptions); got != "default" {
		t.Errorf("the mode is %q", got)
	}
	set, err := e.SetSessionConfigOption(e.ctx(), acp.SetSessionConfigOptionRequest{ValueId: &acp.SetSessionConfigOptionValueId{
		SessionId: begun.SessionId, ConfigId: "mode", Value: "bypassPermissions",
	}})
	if err != nil || mode(set.ConfigOptions) != "bypassPermissions" {
		t.Errorf("the options are %+v, %v", set, err)
	}
	e.say(begun.SessionId, "go")
	if _, err := os.Stat(filepath.Join(dir, "asked.txt")); err != nil {
		t.Error(err)
	}
	if _, err := e.SetSessionMode(e.ctx(), acp.SetSessionModeRequest{SessionId: begun.SessionId, ModeId: "acceptEdits"}); err != nil {
		t.Fatal(err)
	}
	e.await(begun.SessionId, "the new mode", func(u acp.SessionUpdate) bool {
		return u.ConfigOptionUpdate != nil && mode(u.ConfigOptionUpdate.ConfigOptions) == "acceptEdits"
	})
}

func TestASessionHasItsTrace(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"text":"fine"}]}]}`))
	dir := e.folder()
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	begun, err := e.NewSession(e.ctx(), acp.NewSessionRequest{Cwd: dir, McpServers: []acp.McpServer{}, Meta: map[string]any{"traceparent": trace}})
	if err != nil {
		t.Fatal(err)
	}
	e.say(begun.SessionId, "go")
	var out, errOut bytes.Buffer
	if code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, []string{"sessions", "show", "--json", string(begun.SessionId)}); code != exitOK {
		t.Fatalf("%d, %s", code, &errOut)
	}
	var stored map[string]any
	if err := json.Unmarshal(out.Bytes(), &stored); err != nil || !strings.Contains(out.String(), trace) {
		t.Errorf("%v: the session is\n%s", err, &out)
	}
}
