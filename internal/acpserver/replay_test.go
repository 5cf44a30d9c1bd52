package acpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// stored returns a client of a host whose store has a session with these events.
func stored(t *testing.T, id string, events ...rs.Event) *wire {
	t.Helper()
	st := store.NewMemory()
	config, err := json.Marshal(map[string]any{"environment": environment.Config{Agent: environment.Agent{Name: "script"}, Sandbox: environment.Sandbox{Type: "local"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Create(t.Context(), store.Record{ID: id, Agent: "script", Config: config}); err != nil {
		t.Fatal(err)
	}
	for i := range events {
		events[i].Seq, events[i].SessionID = uint64(i+1), id
	}
	if err := st.Append(t.Context(), id, events...); err != nil {
		t.Fatal(err)
	}
	return serveStored(t, st, session.Config{Environment: environment.Config{Agent: environment.Agent{Name: "script"}, Sandbox: environment.Sandbox{Type: "local"}}})
}

// replayed loads a session and returns the texts that come before the answer.
func (w *wire) replayed(id string) []string {
	w.t.Helper()
	w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"session/load","params":{"sessionId":%q,"cwd":"/anywhere","mcpServers":[]}}`, id))
	var texts []string
	for {
		line, err := w.lines.ReadBytes('\n')
		if err != nil {
			w.t.Fatal(err)
		}
		var m struct {
			ID     json.RawMessage
			Error  *acp.RequestError
			Params acp.SessionNotification
		}
		if err := json.Unmarshal(line, &m); err != nil || m.Error != nil {
			w.t.Fatalf("%v, %v: %s", err, m.Error, line)
		}
		if len(m.ID) > 0 {
			return texts
		}
		switch u := m.Params.Update; {
		case u.UserMessageChunk != nil:
			texts = append(texts, "user "+u.UserMessageChunk.Content.Text.Text)
		case u.AgentMessageChunk != nil:
			texts = append(texts, "agent "+strings.TrimSpace(u.AgentMessageChunk.Content.Text.Text))
		case u.ToolCall != nil:
			texts = append(texts, "tool "+string(u.ToolCall.Status))
		}
	}
}

func TestAReplayHasWhatTheConversationHas(t *testing.T) {
	of := func(query string, ev rs.Event) rs.Event {
		ev.QueryID = query
		return ev
	}
	begin := func(query, prompt string) rs.Event {
		return of(query, event(t, rs.TypeQueryStarted, rs.QueryStarted{Prompt: prompt}))
	}
	end := func(query string) rs.Event { return of(query, event(t, rs.TypeQueryCompleted, rs.QueryCompleted{})) }
	say := func(query, block, text string, whole bool) rs.Event {
		return of(query, chunk(t, rs.TypeAgentMessage, block, text, whole))
	}
	checkpoint := func(n int) rs.Event { return event(t, rs.TypeCheckpoint, map[string]any{"number": n}) }
	tool := func(status string) rs.Event {
		return of("1", event(t, rs.TypeToolCall, rs.ToolCall{ToolCallID: "t", Name: "x", Status: rs.ToolStatus(status)}))
	}
	w := stored(t, "s",
		checkpoint(1),
		begin("1", "one"), of("1", chunk(t, rs.TypeUserMessage, "u", "one", false)), say("1", "a", "He", false), tool("in_progress"),
		say("1", "a", "llo", false), say("1", "a", "Hello", true), tool("completed"), end("1"), checkpoint(2),
		begin("2", "withdrawn"), say("2", "b", "not any more", false), end("2"), checkpoint(3),
		event(t, rs.TypeRewound, map[string]any{"checkpoint": 2}),
		begin("3", "silent"), end("3"),
		begin("4", "four"), say("4", "c", "Bye", false), end("4"),
	)
	want := []string{"user one", "agent Hello", "tool completed", "user silent", "user four", "agent Bye"}
	for range 2 {
		if got := w.replayed("s"); !slices.Equal(got, want) {
			t.Errorf("replayed is %q, not %q", got, want)
		}
	}
}

func TestAListIsReadInPages(t *testing.T) {
	var all []acp.SessionInfo
	for i := range 2*pageSize + 1 {
		all = append(all, acp.SessionInfo{SessionId: acp.SessionId(fmt.Sprint(i))})
	}
	s := &server{}
	page := s.pages.next(all)
	var read []acp.SessionInfo
	for {
		read = append(read, page.Sessions...)
		if page.NextCursor == nil {
			break
		}
		more, err := s.nextPage(*page.NextCursor)
		if err != nil {
			t.Fatal(err)
		}
		again, err := s.nextPage(*page.NextCursor)
		if page = more.(acp.ListSessionsResponse); err != nil || again.(acp.ListSessionsResponse).Sessions[0].SessionId != page.Sessions[0].SessionId {
			t.Errorf("a second reading is %+v, %v", again, err)
		}
	}
	if !slices.EqualFunc(read, all, func(a, b acp.SessionInfo) bool { return a.SessionId == b.SessionId }) {
		t.Errorf("read are %d sessions", len(read))
	}
	for range maxPages + 1 {
		s.pages.next(all)
	}
	if len(s.pages) != maxPages {
		t.Errorf("kept are %d pages", len(s.pages))
	}
	if _, err := s.nextPage("none"); err == nil {
		t.Error("an unknown cursor has a page")
	}
}

// A request that waits is cancelled with the protocol's own code.
func TestACancelledRequestSaysSo(t *testing.T) {
	host, err := session.NewHost(session.HostConfig{Store: store.NewMemory()})
	if err != nil {
		t.Fatal(err)
	}
	w := connect(t, Config{Host: host, EndHost: true, Configure: func(ctx context.Context, _ Request) (session.Config, error) {
		<-ctx.Done()
		return session.Config{}, ctx.Err()
	}})
	w.send(`{"jsonrpc":"2.0","id":"n","method":"session/new","params":{"cwd":"/","mcpServers":[]}}`,
		`{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"n"}}`)
	if r := w.next(); r.Error == nil || r.Error.Code != codeCancelled {
		t.Errorf("%+v, %v", r, r.Error)
	}
}
