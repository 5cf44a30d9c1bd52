package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
)

// What creating a session would do or refuse, /team/load says, and makes nothing.
func TestATeamIsLoadedWithoutASideEffect(t *testing.T) {
	dir := t.TempDir()
	profile := filepath.Join(dir, "reviewer.yaml")
	if err := os.WriteFile(profile, []byte("name: reviewer\nmax_turns: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var root string
	s := newServer(t, func(cfg *server.Config) {
		cfg.Defaults = environment.Config{Agent: environment.Agent{Name: "script"}, Sandbox: environment.Sandbox{Type: "local"}}
		inner := cfg.Configure
		cfg.Configure = func(ctx context.Context, c *session.Config) error {
			if c.Metadata["ask"] == "too much" {
				return fmt.Errorf("a second agent: %w", errors.ErrUnsupported)
			}
			err := inner(ctx, c)
			root = c.Environment.Sandbox.Provider.(*local.Provider).Root
			return err
		}
	})
	for body, want := range map[string]string{
		``:   `{"config":{"agent":{"name":"script"},"sandbox":"local"}}`,
		`{}`: `{"config":{"agent":{"name":"script"},"sandbox":"local"}}`,
		`{"config":{"agent":{"model":"m","env":{"WORD":"hunter2"}},"profile":"` + profile + `"},"max_queue":2}`: `{"config":{"agent":{"env":{"WORD":"[redacted]"},"model":"m","name":"script"},` +
			`"profile":{"max_turns":3,"name":"reviewer"},"sandbox":"local"}}`,
	} {
		status, answer := ask(t, s, "POST", "/v1/team/load", body)
		if answer = strings.Replace(answer, `{"local":{"root":"`+root+`"},"type":"local"}`, `"local"`, 1); status != http.StatusOK || strings.TrimSpace(answer) != want {
			t.Errorf("%s: %d %s, want %s", body, status, answer, want)
		}
	}
	for name, c := range map[string]struct{ body, code, names string }{
		"an unknown field":       {`{"agent":"script"}`, "invalid", "agent"},
		"an unknown agent":       {`{"config":{"agent":"scrip"}}`, "invalid_config", "did you mean script"},
		"an unknown sandbox":     {`{"config":{"sandbox":"locl"}}`, "invalid_config", "locl"},
		"a profile that is none": {`{"config":{"profile":"` + profile + `x"}}`, "not_found", profile + "x"},
		"a folder that is none":  {`{"config":{"workspace":[{"folder":"` + dir + `/none"}]}}`, "invalid_config", "/none"},
		"a session that is full": {`{"max_queue":-1}`, "invalid", "the limit of the queue"},
		"what it cannot":         {`{"metadata":{"ask":"too much"}}`, "unsupported", "a second agent"},
	} {
		for _, path := range []string{"/v1/team/load", "/v1/session/create", "/v1/sessions"} {
			status, answer := ask(t, s, "POST", path, c.body)
			fails(t, name+" to "+path, status, answer, c.code, c.names)
		}
	}
	if _, answer := ask(t, s, "GET", "/v1/sessions", ""); answer != `{"sessions":[]}`+"\n" {
		t.Errorf("there are sessions: %s", answer)
	}
	if _, err := os.Stat(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of sandboxes: %v", err)
	}
	if status, answer := ask(t, s, "POST", "/v1/session/create", "{}"); status != http.StatusOK || !strings.HasPrefix(answer, `{"id":"`) {
		t.Errorf("the server's own team: %d %s", status, answer)
	}
}

// run asks for a query and returns the lines of its stream.
func run(t *testing.T, url, id, text string, headers ...string) *bufio.Scanner {
	t.Helper()
	body := fmt.Sprintf(`{"session_id":%q,"text":%q}`, id, text)
	return stream(t, url, "POST", "/v1/session/run", body, append(headers, "Content-Type", "application/json")...)
}

// eventsOf reads a stream to its end, and returns its events and the last message.
func eventsOf(t *testing.T, lines *bufio.Scanner) (events []runnerscripts.Event, last string) {
	t.Helper()
	for lines.Scan() {
		if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			last = kind
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: {\"seq\""); ok {
			ev, err := runnerscripts.DecodeEvent([]byte(`{"seq"` + data))
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, ev)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return events, last
}

// A run has the events of its query alone, and ends with it, however often it is asked for under its key.
func TestARunHasTheEventsOfItsQuery(t *testing.T) {
	s := newServer(t, nil)
	url, _ := listen(t, s)
	id := create(t, s, `[{"steps":[{"text":"one"}]},{"steps":[{"text":"two"}]}]`)
	first := run(t, url, id, "a", sessionapi.KeyHeader, "k1")
	second := run(t, url, id, "b", sessionapi.KeyHeader, "k2")
	var all []runnerscripts.Event
	for i, lines := range []*bufio.Scanner{first, second} {
		events, last := eventsOf(t, lines)
		if len(events) < 4 || last != sessionapi.EventEnd {
			t.Fatalf("run %d has %v, and ends with %q", i, events, last)
		}
		begin, end := events[0], events[len(events)-1]
		if begin.Type != runnerscripts.TypeQueryQueued || end.Type != runnerscripts.TypeQueryCompleted || begin.QueryID != end.QueryID {
			t.Errorf("run %d is from %+v to %+v", i, begin, end)
		}
		for _, ev := range events {
			if ev.QueryID != "" && ev.QueryID != begin.QueryID {
				t.Errorf("run %d has an event of another query: %+v", i, ev)
			}
		}
		all = events
	}
	again, last := eventsOf(t, run(t, url, id, "b", sessionapi.KeyHeader, "k2"))
	if !slices.EqualFunc(again, all, func(a, b runnerscripts.Event) bool { return a.Seq == b.Seq }) || last != sessionapi.EventEnd {
		t.Errorf("asked for again: %d events, and %q; at first %d", len(again), last, len(all))
	}
	for seen, want := range map[uint64]int{all[1].Seq: len(all) - 2, all[len(all)-1].Seq: 0} {
		rest, last := eventsOf(t, run(t, url, id, "b", sessionapi.KeyHeader, "k2", sessionapi.LastEventID, fmt.Sprint(seen)))
		if len(rest) != want || last != sessionapi.EventEnd {
			t.Errorf("after event %d come %d and %q, want %d", seen, len(rest), last, want)
		}
	}
	state := stateOf(t, s, id)
	if state.Query != nil || state.LastSeq < all[len(all)-1].Seq {
		t.Errorf("the state is %+v", state)
	}
}

func stateOf(t *testing.T, h http.Handler, id string) (state session.State) {
	t.Helper()
	_, answer := ask(t, h, "GET", sessionapi.SessionPath(id), "")
	if err := json.Unmarshal([]byte(answer), &state); err != nil {
		t.Fatal(err)
	}
	return state
}

// A client that goes away ends neither its query nor that of another one.
func TestARunHasAttachments(t *testing.T) {
	s := newServer(t, nil)
	url, _ := listen(t, s)
	id := create(t, s, `[{"steps":[{"text":"{{attachments}}"}]}]`)
	body := fmt.Sprintf(`{"session_id":%q,"text":"look","attachments":[{"name":"a.gif","data":"R0lGODlh"}]}`, id)
	events, _ := eventsOf(t, stream(t, url, "POST", "/v1/session/run", body, "Content-Type", "application/json"))
	var said strings.Builder
	for _, ev := range events {
		said.WriteString(ev.Text())
	}
	if want := fmt.Sprintf("a.gif image/gif %x", sha256.Sum256([]byte("GIF89a"))); said.String() != want {
		t.Errorf("the agent got %q, want %q", said.String(), want)
	}
	status, answer := ask(t, s, "POST", "/v1/sessions/"+id+"/prompts", `{"text":"look","attachments":[{"name":"a.bin","data":"AAA="}]}`)
	fails(t, "a file of no kind", status, answer, "invalid", "a.bin")
}

func TestARunHasAnOutputSchema(t *testing.T) {
	s := newServer(t, nil)
	url, _ := listen(t, s)
	id := create(t, s, `[{"steps":[{"text":"no"}]},{"steps":[{"text":"{\"line\":7}"}]}]`)
	body := fmt.Sprintf(`{"session_id":%q,"text":"find the bug","output_schema":{"type":"object","required":["line"]}}`, id)
	events, _ := eventsOf(t, stream(t, url, "POST", "/v1/session/run", body, "Content-Type", "application/json", sessionapi.KeyHeader, "once"))
	last := events[len(events)-1]
	if done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](last); err != nil || last.Type != runnerscripts.TypeQueryCompleted || string(done.ResultData) != `{"line":7}` {
		t.Errorf("it ended with %s %s", last.Type, last.Payload)
	}
	status, answer := ask(t, s, "POST", "/v1/sessions/"+id+"/prompts", `{"text":"go","output_schema":{"$ref":"https://example.com"}}`)
	fails(t, "a schema elsewhere", status, answer, "invalid", "stands alone")
}

func TestARunGoesOnWithoutItsClient(t *testing.T) {
	s := newServer(t, nil)
	url, _ := listen(t, s)
	id := create(t, s, `[{"steps":[{"ask":{"write":{"path":"f","content":"asked"}}},{"text":"went on"}]}]`)
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/session/run", strings.NewReader(`{"session_id":"`+id+`","text":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	asked := until(t, bufio.NewScanner(res.Body), `data: {"seq":5`)
	leave()
	lines := follow(t, url, id)
	for !strings.Contains(strings.Join(asked, ""), `"type":"request_permission"`) {
		asked = until(t, lines, "data: ")
	}
	pending := stateOf(t, s, id).Pending
	if len(pending) != 1 {
		t.Fatalf("pending are %+v", pending)
	}
	if status, answer := ask(t, s, "POST", sessionapi.SessionPath(id, "permissions", pending[0].ID), `{"kind":"allow_once"}`); status != http.StatusNoContent {
		t.Fatalf("answer: %d %s", status, answer)
	}
	for !strings.Contains(strings.Join(asked, ""), `"type":"query_completed"`) {
		asked = until(t, lines, "data: ")
	}
	if !bytes.Contains([]byte(strings.Join(asked, "")), []byte(`"stop_reason":"end_turn"`)) {
		t.Errorf("the query ended with %s", asked)
	}
}

func TestARunThatIsRefused(t *testing.T) {
	s := forCallers(t, nil)
	alices := made(t, s, as(server.RoleUser, "alice")...)
	for name, c := range map[string]struct{ body, code, names string }{
		"an unknown field":      {`{"session_id":"` + alices + `","text":"x","model":"y"}`, "invalid", "model"},
		"no session":            {`{"text":"x"}`, "invalid", "session_id"},
		"no prompt":             {`{"session_id":"` + alices + `","text":""}`, "invalid", "is empty"},
		"an unknown session":    {`{"session_id":"../x","text":"x"}`, "session_not_found", "../x"},
		"a body that is no run": {`[]`, "invalid", "the body"},
	} {
		for _, key := range []string{"", "k"} {
			status, answer := ask(t, s, "POST", "/v1/session/run", c.body, append(as(server.RoleUser, "alice"), sessionapi.KeyHeader, key+name)...)
			fails(t, name, status, answer, c.code, c.names)
		}
	}
	body := `{"session_id":"` + alices + `","text":"x"}`
	status, answer := ask(t, s, "POST", "/v1/session/run", body, as(server.RoleRunner, "bob")...)
	fails(t, "a session of another caller", status, answer, "session_not_found", alices)
	status, answer = ask(t, s, "POST", "/v1/session/run", body, append(as(server.RoleUser, "alice"), sessionapi.LastEventID, "x")...)
	fails(t, "a number that is none", status, answer, "invalid", sessionapi.LastEventID)
	status, answer = ask(t, s, "POST", "/v1/session/run", body, append(as(server.RoleUser, "alice"), "Content-Type", "text/plain")...)
	fails(t, "a form of a page", status, answer, "invalid", "application/json")
	if state := stateOf(t, s, alices); state.LastSeq != 0 {
		t.Errorf("the session has %d events", state.LastSeq)
	}
	status, answer = ask(t, s, "POST", "/v1/team/load", `{"config":{"agent":"script","budget":{"query":{"time":"9h"}}}}`, as(server.RoleUser, "alice")...)
	fails(t, "a team with what a user may not choose", status, answer, "forbidden", "budget")
}

// What an agent offers is there, not there yet, or not supported.
func TestWhatAnAgentOffers(t *testing.T) {
	s := newServer(t, nil)
	url, _ := listen(t, s)
	id := create(t, s, `[{"steps":[{"text":"hello"}]}]`)
	for _, what := range []string{"tools", "models"} {
		status, answer := ask(t, s, "GET", sessionapi.SessionPath(id, what), "")
		fails(t, what+" before the first prompt", status, answer, "no_environment", "first prompt")
	}
	if _, last := eventsOf(t, run(t, url, id, "a name\nfor it")); last != sessionapi.EventEnd {
		t.Errorf("the run ends with %q", last)
	}
	if status, answer := ask(t, s, "GET", sessionapi.SessionPath(id, "tools"), ""); status != http.StatusOK || !strings.HasPrefix(answer, `{"tools":["`) {
		t.Errorf("tools: %d %s", status, answer)
	}
	status, answer := ask(t, s, "GET", sessionapi.SessionPath(id, "models"), "")
	fails(t, "models", status, answer, "unsupported", "script")
	if state := stateOf(t, s, id); state.Title != "a name for it" || !state.Initialized {
		t.Errorf("the state is %+v", state)
	}
}
