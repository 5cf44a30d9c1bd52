package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestDemonstrationWritesAFileRunsACommandAndTellsAllOfIt(t *testing.T) {
	s := newSandbox(t)
	if _, res := call(t, rs.SetupSession, rs.SetupRequest{Session: s.session()}); !res.OK {
		t.Fatalf("%+v", res.Error)
	}
	events := converse(t, s, "be <nice> & kind").finish()

	content, err := os.ReadFile(s.file("hello.txt"))
	if err != nil || !strings.Contains(string(content), "be <nice> & kind") {
		t.Errorf("hello.txt: %q, %v", content, err)
	}
	for _, typ := range []rs.EventType{
		rs.TypeSessionInitialized, rs.TypeQueryStarted, rs.TypeUserMessage, rs.TypeAgentThought,
		rs.TypePlan, rs.TypeAgentMessage, rs.TypeToolCall, rs.TypeToolCallUpdate, rs.TypeUsageUpdate, rs.TypeQueryCompleted,
	} {
		if len(of(events, typ)) == 0 {
			t.Errorf("no %s", typ)
		}
	}
	done := payload[rs.QueryCompleted](t, of(events, rs.TypeQueryCompleted)[0])
	if done.StopReason != rs.StopEndTurn || done.Usage.InputTokens != 4 || done.Usage.OutputTokens == 0 {
		t.Errorf("query_completed: %+v", done)
	}
	for _, ev := range events[1 : len(events)-1] {
		if ev.QueryID != "first" || ev.ConversationID != rs.MainConversation || ev.Source != rs.SourceRunner || ev.Time.IsZero() || ev.SessionID == "" {
			t.Errorf("envelope of %s: %+v", ev.Type, ev)
		}
	}
	if !strings.Contains(said(events), "This was prompt 1 of our conversation.") {
		t.Errorf("said %q", said(events))
	}
}

func TestToolCallsGoFromPendingToCompletedWithWhatTheyDid(t *testing.T) {
	s := newSandbox(t, `[{"write":{"path":"d/a.txt","content":"new"}},{"write":{"path":"d/a.txt","content":"newer"}},
		{"run":["sh","-c","echo out; echo err >&2; exit 3"]},{"run":["no-such-program"]},{"run":["sh","-c","kill -9 $$"]}]`)
	events := converse(t, s, "go").finish()
	var got []string
	updates := map[string]rs.ToolCall{}
	for _, ev := range events {
		if ev.Type == rs.TypeToolCall || ev.Type == rs.TypeToolCallUpdate {
			c := payload[rs.ToolCall](t, ev)
			got = append(got, strings.TrimPrefix(c.ToolCallID, "turn-1-tool-")+" "+string(c.Status))
			updates[c.ToolCallID] = c
		}
	}
	want := []string{
		"1 pending", "1 in_progress", "1 completed", "2 pending", "2 in_progress", "2 completed",
		"3 pending", "3 in_progress", "3 failed", "4 pending", "4 in_progress", "4 failed", "5 pending", "5 in_progress", "5 failed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("tool calls went\n%q, want\n%q", got, want)
	}
	if d := updates["turn-1-tool-1"].Content[0]; d.Type != "diff" || d.OldText != nil || d.NewText != "new" || d.Path != s.file("d/a.txt") {
		t.Errorf("diff of a new file: %+v", d)
	}
	if d := updates["turn-1-tool-2"].Content[0]; d.OldText == nil || *d.OldText != "new" || d.NewText != "newer" {
		t.Errorf("diff of an old file: %+v", d)
	}
	if loc := updates["turn-1-tool-2"].Locations; len(loc) != 1 || loc[0].Path != s.file("d/a.txt") {
		t.Errorf("locations: %+v", loc)
	}
	for id, want := range map[string]string{
		"turn-1-tool-3": `{"exit_code":3,"stdout":"out\n","stderr":"err\n"}`,
		"turn-1-tool-5": `{"exit_code":137,"signal":"killed","stdout":"","stderr":""}`,
	} {
		if raw := string(updates[id].RawOutput); raw != want {
			t.Errorf("rawOutput of %s is %s, want %s", id, raw, want)
		}
	}
	if text := updates["turn-1-tool-4"].Content[0].Content.Text; !strings.Contains(text, "no-such-program") {
		t.Errorf("a missing program shows %q", text)
	}
}

func TestTextComesInChunksOfOneBlockAndIDsNeverRepeat(t *testing.T) {
	const text = "one two  three\nfour five six: sieben, ächt neun 十 eleven"
	s := newSandbox(t, `[{"text":`+string(mustJSON(t, text))+`},{"thought":"hm hm hm hm hm"},{"text":"again"}]`)
	p := converse(t, s, "a")
	p.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "b"})
	events := p.finish()
	blocks := map[string]string{}
	for _, ev := range events {
		switch ev.Type {
		case rs.TypeUserMessage, rs.TypeAgentMessage, rs.TypeAgentThought:
			c := payload[rs.ContentChunk](t, ev)
			blocks[c.BlockID] += c.Content.Text
		}
	}
	if len(blocks) != 8 || blocks["turn-1-block-2"] != text || blocks["turn-2-block-2"] != text || blocks["turn-2-block-1"] != "b" {
		t.Errorf("blocks: %q", blocks)
	}
	if n := len(of(events, rs.TypeAgentMessage)); n != 8 {
		t.Errorf("%d chunks, want 8", n)
	}
}

func TestHistoryMovesToAnotherSandboxAndTheAgentRemembers(t *testing.T) {
	steps := `[{"text":"{{turn}} after [{{history}}]"},{"write":{"path":"f","content":"{{prompt}}"}}]`
	s := newSandbox(t, steps)
	converse(t, s, "grüße <1>").finish()
	first, _ := transcript(t, s)

	moved := newSandbox(t, steps)
	if _, res := call(t, rs.SetupSession, rs.SetupRequest{Session: moved.session(), Transcript: &first}); !res.OK {
		t.Fatalf("%+v", res.Error)
	}
	if again, _ := transcript(t, moved); again.Main != first.Main || first.Main == "" {
		t.Errorf("the restored transcript differs:\n%q\n%q", again.Main, first.Main)
	}
	events := converse(t, moved, "second").finish()
	if got := said(events); got != "2 after [grüße <1>]" {
		t.Errorf("said %q", got)
	}
	if init := payload[rs.SessionInitialized](t, events[0]); !init.Resumed {
		t.Error("session_initialized does not say resumed")
	}
	second, _ := transcript(t, moved)
	if rest, ok := strings.CutPrefix(second.Main, first.Main); !ok || rest == "" {
		t.Error("the transcript does not continue the first one")
	}
	// A second setup without a transcript keeps the existing one.
	call(t, rs.SetupSession, rs.SetupRequest{Session: moved.session()})
	if again, _ := transcript(t, moved); again.Main != second.Main {
		t.Error("a second setup changed the transcript")
	}
}

func TestRawShowsTheLinesOfTheHistory(t *testing.T) {
	s := newSandbox(t, `[{"text":"one two three four five"},{"run":["true"]}]`)
	p := start(t, rs.ExecuteQuery)
	p.call(rs.QueryRequest{Session: s.session(), Prompt: "go <on>", Raw: true})
	var lines strings.Builder
	for _, ev := range of(p.seen, rs.TypeRaw) {
		lines.Write(ev.Payload)
		lines.WriteByte('\n')
	}
	if tr, _ := transcript(t, s); lines.String() != tr.Main || tr.Main == "" {
		t.Errorf("raw events\n%s\nhistory\n%s", lines.String(), tr.Main)
	}
}

// folded returns a conversation as a reader puts it together.
func folded(t *testing.T, events []rs.Event) map[string]string {
	t.Helper()
	conv := map[string]string{}
	for _, ev := range events {
		switch ev.Type {
		case rs.TypeUserMessage, rs.TypeAgentMessage, rs.TypeAgentThought:
			c := payload[rs.ContentChunk](t, ev)
			if _, begun := conv[c.BlockID]; !begun {
				conv[c.BlockID+" time"] = ev.Time.String()
			}
			conv[c.BlockID] += c.Content.Text
		case rs.TypeToolCall, rs.TypeToolCallUpdate:
			c := payload[rs.ToolCall](t, ev)
			conv[c.ToolCallID+" "+string(c.Status)] = string(ev.Payload) + ev.Time.String()
		case rs.TypePlan, rs.TypeUsageUpdate:
			conv[string(ev.Type)] += string(ev.Payload) + ev.Time.String()
		case rs.TypeQueryStarted, rs.TypeQueryCompleted, rs.TypeQueryFailed:
			conv[string(ev.Type)] += string(ev.Payload)
		}
	}
	return conv
}

func TestTranscriptIsTheSameConversationAsTheLiveOne(t *testing.T) {
	s := newSandbox(t,
		`[{"thought":"a b c d e f"},{"plan":{"entries":[{"content":"p <1>"}]}},{"text":"one two three four five <six>"},
		  {"write":{"path":"f","content":"<x>"}},{"ask":{"run":["true"]}},{"run":["false"]}]`,
		`[{"text":"failing"},{"fail":{"code":"api","message":"m","http_status":529}}]`)
	p := converse(t, s, "<go>")
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "and again"})
	live := folded(t, p.finish())
	_, events := transcript(t, s)
	read := folded(t, events)
	for id := range live {
		if live[id] != read[id] {
			t.Errorf("%s differs:\nlive %s\nread %s", id, live[id], read[id])
		}
	}
	if len(read) != len(live) || len(live) < 15 {
		t.Errorf("%d parts live, %d read", len(live), len(read))
	}
	for _, ev := range events {
		if ev.Source != rs.SourceTranscript {
			t.Errorf("source of %s is %s", ev.Type, ev.Source)
		}
	}
}

func TestAttachmentsComeWithTheirPrompt(t *testing.T) {
	s := newSandbox(t, `[{"text":"<{{attachments}}>"}]`)
	words := func(text string) []rs.Attachment {
		return []rs.Attachment{{Name: text + ".txt", MediaType: "text/plain", Data: []byte(text)}}
	}
	p := start(t, rs.ExecuteQuery)
	p.send(rs.QueryRequest{Session: s.session(), Prompt: "one", PromptID: "first", Attachments: words("a")})
	p.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "two", Attachments: words("bc")})
	p.send(rs.Control{Type: rs.ControlPrompt, ID: "third", Text: "three"})
	events := p.finish()
	const want = "<a.txt text/plain ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb>" +
		"<bc.txt text/plain 1e0bbd6c686ba050b8eb03ffeedc64fdc9d80947fce821abbe5d6dc8d252c5ac><>"
	if got := said(events); got != want {
		t.Errorf("the agent got %s", got)
	}
	started := payload[rs.QueryStarted](t, of(events, rs.TypeQueryStarted)[1])
	if a := started.Attachments; len(a) != 1 || a[0].Name != "bc.txt" || a[0].Size != 2 || a[0].Data != nil {
		t.Errorf("query_started: %+v", started)
	}
}

func TestAttachmentThatTheAgentDoesNotAcceptFailsTheQueryByName(t *testing.T) {
	s := newSandbox(t)
	s.agent = rs.Agent{Name: "command", Command: []string{"cat"}}
	p := start(t, rs.ExecuteQuery)
	p.send(rs.QueryRequest{Session: s.session(), Prompt: "one", PromptID: "first", Attachments: []rs.Attachment{{Name: "a.png", MediaType: "image/png", Data: []byte("x")}}})
	p.send(rs.Control{Type: rs.ControlPrompt, ID: "second", Text: "two"})
	events := p.finish()
	failed := payload[rs.QueryFailed](t, of(events, rs.TypeQueryFailed)[0])
	if failed.Code != rs.FailUnsupported || !strings.Contains(failed.Message, `the agent "command" accepts no images`) || len(of(events, rs.TypeQueryCompleted)) != 1 {
		t.Errorf("%+v", failed)
	}
}

func TestFailStepEndsTheQueryAndNotTheConversation(t *testing.T) {
	s := newSandbox(t, `[{"fail":{"code":"api","message":"wait and try again","http_status":529}}]`,
		`[{"fail":{"code":"query","message":"not this one"}}]`, `[{"text":"fine"}]`)
	p := converse(t, s, "a")
	f := payload[rs.QueryFailed](t, p.until(rs.TypeQueryFailed))
	if f.Code != rs.FailAPI || f.HTTPStatus != 529 || f.Message != "wait and try again" || f.Usage.InputTokens != 1 {
		t.Errorf("query_failed: %+v", f)
	}
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "b"})
	if f := payload[rs.QueryFailed](t, p.until(rs.TypeQueryFailed)); f.Code != rs.FailQuery || f.Message != "not this one" {
		t.Errorf("query_failed: %+v", f)
	}
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "c"})
	if got := said(p.finish()); got != "fine" {
		t.Errorf("said %q", got)
	}
}

func TestFailedAgentEndsTheConversationAndTheQueuedPrompts(t *testing.T) {
	s := newSandbox(t, `[{"ask":{"run":["true"]}},{"fail":{"code":"agent","message":"it broke"}}]`)
	p := converse(t, s, "a")
	asked := payload[rs.PermissionRequest](t, p.until(rs.TypePermissionRequest))
	p.send(rs.Control{Type: rs.ControlPrompt, ID: "queued", Text: "b"})
	p.send(rs.Control{Type: rs.ControlPermission, ID: asked.ID, Decision: &rs.PermissionDecision{Kind: rs.AllowOnce}})
	res := p.end(exitFailed)
	if res.OK || res.Error.Code != rs.FailAgent || res.Error.Message != "it broke" {
		t.Errorf("result %+v", res)
	}
	failed := of(p.seen, rs.TypeQueryFailed)
	if len(failed) != 2 || failed[0].QueryID != "first" || failed[1].QueryID != "queued" {
		t.Errorf("query_failed events: %+v", failed)
	}
}

func TestCrashStepEndsTheRunnerWithItsCodeAndNoResult(t *testing.T) {
	s := newSandbox(t, `[{"text":"before"},{"crash":70}]`)
	p := converse(t, s, "a")
	p.until(rs.TypeAgentMessage)
	for {
		ev, err := p.out.Next()
		if err != nil {
			break
		}
		if ev.Type == rs.TypeResult || ev.Type == rs.TypeQueryCompleted {
			t.Errorf("after the crash came %s", ev.Type)
		}
	}
	if got := <-p.status; got != 70 {
		t.Errorf("exit status %d, want 70", got)
	}
	// The next process resumes the conversation.
	s.play(`[{"text":"{{turn}}"}]`)
	if got := said(converse(t, s, "b").finish()); got != "2" {
		t.Errorf("after the crash it said %q, want 2", got)
	}
}

func TestPrintStepPrintsAnyLine(t *testing.T) {
	s := newSandbox(t, `[{"print":"not JSON"},{"print":{"type":"log","payload":{"level":"info","message":"mine"}}},{"print":{"type":"novel","x":1}}]`)
	events := converse(t, s, "a").finish()
	logs := of(events, rs.TypeLog)
	if len(logs) != 2 || !strings.Contains(string(logs[0].Payload), "not JSON") || payload[rs.Log](t, logs[1]).Message != "mine" {
		t.Errorf("log events: %+v", logs)
	}
	if len(of(events, "novel")) != 1 {
		t.Error("the unknown type did not come through")
	}
}

func TestWriteNeverLeavesTheWorkspace(t *testing.T) {
	s := newSandbox(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, s.file("link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"../out", outside + "/out", "link/out", "a/../../out", "link"} {
		s.play(`[{"write":{"path":` + string(mustJSON(t, path)) + `,"content":"x"}}]`)
		updates := of(converse(t, s, "go").finish(), rs.TypeToolCallUpdate)
		if last := payload[rs.ToolCall](t, updates[len(updates)-1]); last.Status != rs.ToolFailed {
			t.Errorf("writing %s: %+v", path, last)
		}
		_, res := call(t, rs.SetupSession, rs.SetupRequest{Session: s.session(), Files: []rs.WorkspaceFile{{Path: path, Content: []byte("x")}}})
		if res.OK || res.Error.Code != rs.FailInvalidRequest || !strings.Contains(res.Error.Message, path) {
			t.Errorf("setting up %s: %+v", path, res)
		}
	}
	for _, dir := range []string{outside, filepath.Dir(s.paths.Workspace)} {
		if _, err := os.Stat(filepath.Join(dir, "out")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something was written: %v", dir, err)
		}
	}
}

func TestSetupWritesTheWorkspaceFiles(t *testing.T) {
	s := newSandbox(t)
	files := []rs.WorkspaceFile{
		{Path: "a/b/c.bin", Content: []byte{0, 0xff, '\n'}},
		{Path: "run.sh", Content: []byte("#!/bin/sh\n"), Mode: 0o755},
		{Path: "empty"},
	}
	for range 2 { // twice on the same session
		if _, res := call(t, rs.SetupSession, rs.SetupRequest{Session: s.session(), Files: files}); !res.OK {
			t.Fatalf("%+v", res.Error)
		}
	}
	for _, f := range files {
		got, err := os.ReadFile(s.file(f.Path))
		info, serr := os.Stat(s.file(f.Path))
		if err != nil || serr != nil || string(got) != string(f.Content) {
			t.Fatalf("%s: %q, %v, %v", f.Path, got, err, serr)
		}
		if want := max(f.Mode, 0o644); f.Mode != 0 && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", f.Path, info.Mode(), want)
		}
	}
}

func mustJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
