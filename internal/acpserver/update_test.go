package acpserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	acp "github.com/coder/acp-go-sdk"
	"github.com/hashicorp/go-hclog"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func event(t *testing.T, typ rs.EventType, payload any) rs.Event {
	t.Helper()
	data, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return rs.Event{Type: typ, Payload: data, ConversationID: rs.MainConversation}
}

func chunk(t *testing.T, typ rs.EventType, block, text string, snapshot bool) rs.Event {
	t.Helper()
	return event(t, typ, rs.ContentChunk{BlockID: block, Content: rs.Content{Type: "text", Text: text}, Snapshot: snapshot})
}

func TestTheEditorGetsNoTextTwice(t *testing.T) {
	say := func(block, text string) rs.Event { return chunk(t, rs.TypeAgentMessage, block, text, false) }
	whole := func(block, text string) rs.Event { return chunk(t, rs.TypeAgentMessage, block, text, true) }
	think := func(block, text string) rs.Event { return chunk(t, rs.TypeAgentThought, block, text, false) }
	tool := event(t, rs.TypeToolCall, rs.ToolCall{ToolCallID: "t"})
	sub := say("s", "to myself")
	sub.ConversationID = "t"
	for name, c := range map[string]struct {
		events []rs.Event
		want   string
	}{
		"pieces":                                       {[]rs.Event{say("a", "one "), say("a", "two")}, "one two"},
		"pieces, then the whole":                       {[]rs.Event{say("a", "one "), say("a", "two"), whole("a", "one two")}, "one two"},
		"a piece is missing in between":                {[]rs.Event{say("a", "one "), whole("a", "one two"), say("a", " three")}, "one two three"},
		"the whole twice":                              {[]rs.Event{whole("a", "one"), whole("a", "one")}, "one"},
		"taken back":                                   {[]rs.Event{say("a", "one"), whole("a", ""), whole("b", "two")}, "one\n\ntwo"},
		"another text instead":                         {[]rs.Event{say("a", "one"), whole("a", "two"), whole("a", "two three")}, "one\n\ntwo three"},
		"a block after another":                        {[]rs.Event{say("a", "one"), say("b", "two")}, "one\n\ntwo"},
		"another prompt in between":                    {[]rs.Event{say("a", "one"), event(t, rs.TypeQueryStarted, rs.QueryStarted{}), say("b", "two")}, "onetwo"},
		"a tool call in between":                       {[]rs.Event{say("a", "one"), tool, say("b", "two")}, "one<tool>two"},
		"thoughts":                                     {[]rs.Event{think("a", "hm"), say("b", "one"), think("c", "hm"), think("d", "so")}, "(hm)one(hm)(\n\nso)"},
		"a subagent talks":                             {[]rs.Event{say("a", "one"), sub, say("a", " two")}, "one two"},
		"what the user said":                           {[]rs.Event{chunk(t, rs.TypeUserMessage, "u", "hello", false), say("a", "one")}, "one"},
		"an agent's own line":                          {[]rs.Event{event(t, rs.TypeRaw, "x"), event(t, "unheard_of", struct{}{}), say("a", "one")}, "one"},
		"a payload of another kind":                    {[]rs.Event{event(t, rs.TypeAgentMessage, []int{1}), say("a", "one")}, "one"},
		"the usage of the context comes in the middle": {[]rs.Event{say("a", "one"), event(t, rs.TypeUsageUpdate, rs.UsageUpdate{Used: 1}), say("a", " two")}, "one two"},
	} {
		t.Run(name, func(t *testing.T) {
			tell := newUpdater(&paths{folder: "/f"}, hclog.NewNullLogger(), new(choices))
			var got strings.Builder
			for _, ev := range c.events {
				u, ok := tell.update(ev)
				switch {
				case !ok:
				case u.AgentMessageChunk != nil:
					got.WriteString(u.AgentMessageChunk.Content.Text.Text)
				case u.AgentThoughtChunk != nil:
					got.WriteString("(" + u.AgentThoughtChunk.Content.Text.Text + ")")
				case u.ToolCall != nil:
					got.WriteString("<tool>")
				default:
					t.Errorf("delivered was %+v", u)
				}
			}
			if got.String() != c.want {
				t.Errorf("the editor shows %q, not %q", &got, c.want)
			}
		})
	}
}

func TestUpdatesAreOfTheProtocol(t *testing.T) {
	old := "old"
	p := &paths{folder: "/home/me/project"}
	p.found("/workspace")
	tell := newUpdater(p, hclog.NewNullLogger(), &choices{mode: "default"})
	sub := event(t, rs.TypeToolCall, rs.ToolCall{ToolCallID: "s", Name: "Read", Kind: rs.ToolRead})
	sub.ConversationID = "1"
	for _, c := range []struct {
		ev   rs.Event
		want string // empty: no update
	}{
		{
			event(t, rs.TypeToolCallUpdate, rs.ToolCall{ToolCallID: "1", Name: "Edit", Locations: []rs.Location{{Path: "/workspace/a.go", Line: 3}, {Path: "b.go"}, {Path: "/etc/passwd"}}}),
			`{"kind":"other","locations":[{"line":3,"path":"/home/me/project/a.go"},{"path":"/home/me/project/b.go"},{"path":"/etc/passwd"}],"sessionUpdate":"tool_call","status":"pending","title":"Edit","toolCallId":"1"}`,
		},
		{
			event(t, rs.TypeToolCall, rs.ToolCall{ToolCallID: "1", Status: rs.ToolCompleted, RawOutput: json.RawMessage(`{"n":1}`), Content: []rs.ToolCallContent{
				{Type: "diff", Path: "/workspace/a.go", OldText: &old, NewText: "new"},
				{Type: "content", Content: &rs.Content{Type: "text", Text: "done"}},
				{Type: "content", Content: &rs.Content{Type: "hologram"}},
			}}),
			`{"content":[{"newText":"new","oldText":"old","path":"/home/me/project/a.go","type":"diff"},{"content":{"text":"done","type":"text"},"type":"content"}],"rawOutput":{"n":1},"sessionUpdate":"tool_call_update","status":"completed","toolCallId":"1"}`,
		},
		{sub, `{"_meta":{"agentenv":{"subagent":"1"}},"kind":"read","sessionUpdate":"tool_call","status":"pending","title":"Read","toolCallId":"s"}`},
		{event(t, rs.TypeToolCall, rs.ToolCall{}), ""},
		{event(t, rs.TypePlan, rs.Plan{Entries: []rs.PlanEntry{{Content: "x"}}}), `{"entries":[{"content":"x","priority":"medium","status":"pending"}],"sessionUpdate":"plan"}`},
		{
			event(t, rs.TypeCommands, map[string]any{"availableCommands": []any{map[string]string{"name": "go", "description": "goes"}}}),
			`{"availableCommands":[{"description":"goes","name":"go"}],"sessionUpdate":"available_commands_update"}`,
		},
		{event(t, rs.TypeModeUpdate, rs.ModeUpdate{CurrentModeID: "default"}), ""}, // no change
		{event(t, rs.TypeModeUpdate, rs.ModeUpdate{CurrentModeID: "plan"}), `{"currentModeId":"plan","sessionUpdate":"current_mode_update"}`},
		{event(t, rs.TypeUsageUpdate, rs.UsageUpdate{Used: 5, Size: 10}), `{"sessionUpdate":"usage_update","size":10,"used":5}`},
		{
			event(t, rs.TypeAgentMessage, rs.ContentChunk{BlockID: "i", Content: rs.Content{Type: "image", Data: "aGk=", MimeType: "image/png"}}),
			`{"content":{"data":"aGk=","mimeType":"image/png","type":"image"},"messageId":"e184b92f-2015-5b66-93b7-ba7ebbfcf911","sessionUpdate":"agent_message_chunk"}`,
		},
		{event(t, rs.TypeQueryCompleted, rs.QueryCompleted{}), ""},
		{
			event(t, rs.TypeQueryFailed, rs.QueryFailed{Usage: rs.Usage{CostUSD: 0.5}}),
			`{"cost":{"amount":0.5,"currency":"USD"},"sessionUpdate":"usage_update","size":10,"used":5}`,
		},
		{event(t, rs.TypeSessionInfo, rs.SessionInfo{Title: "Mend it"}), `{"sessionUpdate":"session_info_update","title":"Mend it"}`},
		{event(t, rs.TypeOptionsChanged, rs.OptionsChanged{Model: "m"}), ""},
		{event(t, rs.TypeOptionsChanged, rs.OptionsChanged{Mode: "default"}), `{"currentModeId":"default","sessionUpdate":"current_mode_update"}`},
		{event(t, rs.TypeError, rs.ErrorInfo{Message: "x"}), ""},
	} {
		u, ok := tell.update(c.ev)
		if !ok {
			if c.want != "" {
				t.Errorf("%s: no update", c.ev.Type)
			}
			continue
		}
		data, err := json.Marshal(u)
		if err != nil {
			t.Errorf("%s: %v", c.ev.Type, err)
			continue
		}
		var sorted map[string]any
		if err := json.Unmarshal(data, &sorted); err != nil {
			t.Fatal(err)
		}
		if data, err = json.Marshal(sorted); err != nil || string(data) != c.want {
			t.Errorf("%s becomes\n%s, not\n%s", c.ev.Type, data, c.want)
		}
	}
}

func TestAPromptBecomesTextAndAttachments(t *testing.T) {
	p := &paths{folder: "/f"}
	link := acp.ResourceLinkBlock
	embed := func(uri, text string) acp.ContentBlock {
		return acp.ResourceBlock(acp.EmbeddedResourceResource{TextResourceContents: &acp.TextResourceContents{Uri: uri, Text: text}})
	}
	for name, c := range map[string]struct {
		blocks []acp.ContentBlock
		want   string
	}{
		"text":              {[]acp.ContentBlock{acp.TextBlock("look "), acp.TextBlock("here")}, "look here"},
		"a file":            {[]acp.ContentBlock{acp.TextBlock("see "), link("a b.go", "file:///f/x/a%20b.go#L1:2")}, "see [@a b.go](x/a b.go#L1:2)"},
		"the folder itself": {[]acp.ContentBlock{link("f", "file:///f")}, "[@f](.)"},
		"a file elsewhere":  {[]acp.ContentBlock{link("", "file:///fg/a.go")}, "[@a.go](/fg/a.go)"},
		"a page":            {[]acp.ContentBlock{link("page", "https://x.test/p?q=1")}, "[@page](https://x.test/p?q=1)"},
		"an embedded text": {
			[]acp.ContentBlock{acp.TextBlock("in "), embed("file:///f/a.go", "package a"), acp.TextBlock(" mend it")},
			"in [@a.go](a.go) mend it\n\n<context ref=\"a.go\">\npackage a\n</context>",
		},
	} {
		if got, attached, err := p.content(c.blocks); err != nil || got != c.want || attached != nil {
			t.Errorf("%s: %q, %v, %v, not %q", name, got, attached, err, c.want)
		}
	}
	uri := "file:///f/x/b.png"
	named := acp.ImageBlock("aGo=", "image/jpg")
	named.Image.Uri = &uri
	embedded := acp.ResourceBlock(acp.EmbeddedResourceResource{BlobResourceContents: &acp.BlobResourceContents{Uri: "file:///f/a%20b.pdf", Blob: "aGk="}})
	text, got, err := p.content([]acp.ContentBlock{acp.ImageBlock("aA==", "image/png"), acp.TextBlock("see "), embedded, named})
	want := []rs.Attachment{{Data: []byte("h")}, {Name: "a b.pdf", Data: []byte("hi")}, {Name: "b.png", Data: []byte("hj")}}
	if err != nil || text != "see [@a b.pdf](a b.pdf)" || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %+v, %v", text, got, err)
	}
	for name, blocks := range map[string][]acp.ContentBlock{
		"nothing": nil, "blanks": {acp.TextBlock(" \n")}, "sound": {acp.AudioBlock("aGk=", "audio/wav")},
		"no base64": {acp.TextBlock("see"), acp.ImageBlock("a", "image/png")}, "an image alone": {acp.ImageBlock("aGk=", "image/png")},
	} {
		_, _, err := p.content(blocks)
		if e := new(acp.RequestError); !errors.As(err, &e) || e.Code != codeInvalidParams {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWithoutASandboxPathsAreTheEditorsOwn(t *testing.T) {
	p := &paths{folder: filepath.FromSlash("/f")}
	var got []string
	for _, name := range []string{"a", "/f/a", "/x/a", ""} {
		got = append(got, p.editor(name))
	}
	if !slices.Equal(got, []string{"/f/a", "/f/a", "/x/a", ""}) {
		t.Errorf("%q", got)
	}
}

// A client gets what does not match the schema of an executor, as the events have it.
func TestAFailedPromptHasItsDetail(t *testing.T) {
	failed := &session.QueryError{QueryID: "q", Failure: rs.QueryFailed{Code: rs.FailParameters, Message: "no", Detail: &rs.FailureDetail{
		Violations: []rs.Violation{{Path: "$.month", Message: "type"}},
	}}}
	data, err := json.Marshal(new(server).requestError(fmt.Errorf("prompt: %w", failed)).Data)
	if want := `{"code":"parameter_validation_failed","detail":{"validation_errors":[{"path":"$.month","message":"type"}]}}`; err != nil || string(data) != want {
		t.Errorf("%s, %v", data, err)
	}
}

func TestACancelledPromptEndsCancelledHoweverTheAgentEnded(t *testing.T) {
	done := rs.QueryCompleted{StopReason: rs.StopEndTurn, Usage: rs.Usage{InputTokens: 2, OutputTokens: 3}}
	failed, broken := &session.QueryError{QueryID: "q"}, errors.New("the memory is full")
	for _, c := range []struct {
		name      string
		cancelled bool
		err       error
		want      acp.StopReason
		wantErr   error
	}{
		{name: "done", want: acp.StopReasonEndTurn},
		{name: "done, cancelled", cancelled: true, want: acp.StopReasonCancelled},
		{name: "failed", err: failed, wantErr: failed},
		{name: "failed, cancelled", cancelled: true, err: failed, want: acp.StopReasonCancelled},
		{name: "what the session says fails", cancelled: true, err: broken, wantErr: broken},
	} {
		result := done
		if c.err != nil {
			result = rs.QueryCompleted{}
		}
		var cancelled error
		if c.cancelled {
			cancelled = errCancelled
		}
		got, err := ending(cancelled, result, c.err)
		if got.StopReason != c.want || !errors.Is(err, c.wantErr) || (got.Usage != nil) != (c.err == nil) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}
