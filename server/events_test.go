package server_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/server"
)

// follow opens the stream of a session's events and returns its lines.
func follow(t *testing.T, url, id string, headers ...string) *bufio.Scanner {
	t.Helper()
	return stream(t, url, "GET", sessionapi.SessionPath(id, "events"), "", headers...)
}

// stream opens a stream and returns its lines.
func stream(t *testing.T, url, method, path, body string, headers ...string) *bufio.Scanner {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if kind := res.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%s: the type is %q", res.Status, kind)
	}
	return bufio.NewScanner(res.Body)
}

// until reads lines up to one with a prefix, and returns them.
func until(t *testing.T, lines *bufio.Scanner, prefix string) []string {
	t.Helper()
	var seen []string
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if strings.HasPrefix(lines.Text(), prefix) {
			return seen
		}
	}
	t.Fatalf("no %q comes after %q: %v", prefix, seen, lines.Err())
	return nil
}

func TestAStreamHasNumberedEventsAndSaysWhyItEnds(t *testing.T) {
	s := newServer(t, nil)
	url, stop := listen(t, s)
	id := create(t, s, `[{"steps":[{"text":"hello"}]}]`)
	lines := follow(t, url, id)
	if status, answer := ask(t, s, "POST", sessionapi.SessionPath(id, "prompts"), `{"text":"go"}`); status != http.StatusOK {
		t.Fatalf("prompt: %d %s", status, answer)
	}
	seen := until(t, lines, "id: 3")
	if seen[0] != "id: 1" || !strings.HasPrefix(seen[1], `data: {"seq":1,"type":"query_queued",`) || seen[2] != "" || seen[3] != "id: 2" {
		t.Errorf("the stream begins with %q", seen)
	}
	if again := until(t, follow(t, url, id, sessionapi.LastEventID, "1"), "id: "); len(again) != 1 || again[0] != "id: 2" {
		t.Errorf("after event 1 comes %q", again)
	}
	if status, answer := ask(t, s, "POST", sessionapi.SessionPath(id, "unload"), ""); status != http.StatusNoContent {
		t.Fatalf("unload: %d %s", status, answer)
	}
	until(t, lines, "event: "+sessionapi.EventEnd)
	if lines.Scan(); lines.Text() != "data: {}" {
		t.Errorf("the end has %q", lines.Text())
	}
	until(t, follow(t, url, id), "event: "+sessionapi.EventEnd) // it is closed, and stays so
	opened := follow(t, url, create(t, s, `[]`))
	stop()
	until(t, opened, "event: "+sessionapi.EventShutdown)
	if status, answer := ask(t, s, "GET", sessionapi.SessionPath(id, "events"), "", sessionapi.LastEventID, "x"); status != http.StatusBadRequest {
		t.Errorf("a Last-Event-ID that is no number: %d %s", status, answer)
	}
}

func TestAStreamWithoutEventsHasHeartbeats(t *testing.T) {
	s := newServer(t, nil)
	s.SetHeartbeat(time.Millisecond)
	url, _ := listen(t, s)
	lines := follow(t, url, create(t, s, `[]`))
	for range 3 {
		until(t, lines, ":")
	}
}

// A resolution names the caller who answered, over each interface, and no client can choose the name.
func TestAResolutionNamesTheCaller(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s := newServer(t, func(cfg *server.Config) { cfg.Authenticate = byName })
	url, _ := listen(t, s)
	id := create(t, s, `[{"steps":[{"ask":{"run":["true"]}}]}]`, as(server.RoleRunner, "alice")...)
	lines := follow(t, url, id, as(server.RoleRunner, "alice")...)
	prompt := func() (request string) {
		if status, answer := ask(t, s, "POST", sessionapi.SessionPath(id, "prompts"), `{"text":"go"}`); status != http.StatusOK {
			t.Fatalf("prompt: %d %s", status, answer)
		}
		for lines.Scan() {
			var ev runnerscripts.Event
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok || json.Unmarshal([]byte(data), &ev) != nil {
				continue
			}
			if v, ok := ev.Value().(*runnerscripts.PermissionRequest); ok {
				return v.ID
			}
		}
		t.Fatal(lines.Err())
		return ""
	}
	resolved := func(by string) {
		t.Helper()
		seen := until(t, lines, "data: {\"seq\":")
		for !strings.Contains(seen[len(seen)-1], `"permission_resolved"`) {
			seen = until(t, lines, "data: {\"seq\":")
		}
		if last := seen[len(seen)-1]; !strings.Contains(last, `"by":"`+by+`"`) {
			t.Errorf("it is not by %s: %s", by, last)
		}
	}
	path := sessionapi.SessionPath(id, "permissions") + "/"
	request := prompt()
	status, answer := ask(t, s, "POST", path+request, `{"kind":"allow_once","by":"bob"}`, as(server.RoleRunner, "alice")...)
	fails(t, "a name of the client", status, answer, "invalid", "by")
	for _, caller := range [][]string{as(server.RoleRunner, "alice"), {"Authorization", "Bearer " + token}} {
		if status, answer := ask(t, s, "POST", path+request, `{"kind":"allow_once"}`, caller...); status != http.StatusNoContent {
			t.Fatalf("answer: %d %s", status, answer)
		}
		if strings.Contains(caller[1], "alice") {
			resolved("alice")
		} else {
			resolved("admin")
		}
		request = prompt()
	}
	client := connectACP(t, "ws"+strings.TrimPrefix(url, "http")+"/acp", as(server.RoleRunner, "alice")...)
	client.call(acpInitialize)
	client.send(acpCall("session/load", `{"sessionId":"`+id+`","cwd":"/p","mcpServers":[]}`))
	asked := client.next(func(a acpAnswer, _ string) bool { return a.Method == "session/request_permission" })
	client.send(`{"jsonrpc":"2.0","id":` + string(asked.ID) + `,"result":{"outcome":{"outcome":"selected","optionId":"allow_once"}}}`)
	resolved("alice")
}
