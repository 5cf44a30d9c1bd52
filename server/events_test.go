package server_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/sessionapi"
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
