package environment

import (
	"context"
	_ "embed" // a client
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// sessionClient is an executor with a session client; see its text.
//
//go:embed testdata/session_client.py
var sessionClient string

// coordinatorDouble is a test double of a coordinator. It has the sessions ses_own and ses_other, and
// answers only requests with the key of the host.
type coordinatorDouble struct {
	url string

	mu       sync.Mutex
	sessions map[string]map[string]any
	events   []string
}

func newCoordinatorDouble(t *testing.T) *coordinatorDouble {
	t.Helper()
	d := &coordinatorDouble{sessions: map[string]map[string]any{}}
	for _, id := range []string{"ses_own", "ses_other"} {
		d.sessions[id] = map[string]any{"session_id": id, "status": "running"}
	}
	mux := http.NewServeMux()
	of := func(pattern string, status int, answer func(session map[string]any, body map[string]any) any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			d.mu.Lock()
			defer d.mu.Unlock()
			session := d.sessions[r.PathValue("id")]
			w.Header().Set("Content-Type", "application/json")
			if session == nil {
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, `{"detail":"Session not found"}`)
				return
			}
			var body map[string]any
			if data, _ := io.ReadAll(r.Body); len(data) > 0 && json.Unmarshal(data, &body) != nil {
				t.Errorf("the coordinator got %s", data)
			}
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(answer(session, body))
		})
	}
	change := func(session, body map[string]any) any {
		for key, value := range body {
			session[key] = value
		}
		return map[string]any{"ok": true, "session": session}
	}
	of("POST /sessions/{id}/bind", 200, change)
	of("PATCH /sessions/{id}/metadata", 200, change)
	of("POST /sessions/{id}/events", 201, func(session, body map[string]any) any {
		text, _ := json.Marshal(body)
		d.events = append(d.events, string(text))
		if body["event_type"] == "result" {
			session["status"] = "finished"
		}
		return map[string]any{"ok": true}
	})
	of("GET /sessions/{id}", 200, func(session, _ map[string]any) any { return map[string]any{"session": session} })
	of("GET /sessions/{id}/status", 200, func(session, _ map[string]any) any { return map[string]any{"status": session["status"]} })
	of("GET /sessions/{id}/result", 200, func(map[string]any, map[string]any) any { return map[string]any{"result": "done"} })
	of("GET /sessions/{id}/affinity", 200, func(session, _ map[string]any) any {
		return map[string]any{"hostname": session["hostname"], "executor_profile": session["executor_profile"]}
	})
	of("DELETE /sessions/{id}", 200, func(session, _ map[string]any) any {
		delete(d.sessions, session["session_id"].(string))
		return map[string]any{"ok": true}
	})
	mux.HandleFunc("GET /sessions", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		all := []any{}
		for _, s := range d.sessions {
			all = append(all, s)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sessions": all})
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+hostKey {
			t.Errorf("the authorization is %q", r.Header.Get("Authorization"))
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	d.url = server.URL
	return d
}

// config returns the settings with which executors reach the coordinator.
func (d *coordinatorDouble) config() Coordinator {
	return Coordinator{URL: d.url, Profile: "coding", SessionID: "ses_own", Credential: KeySource{Env: "TEST_HOST_KEY"}}
}

// check compares what the session client has printed, and what the coordinator has got.
func (d *coordinatorDouble) check(t *testing.T, printed string) {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	session := func(status, executor string, more ...string) map[string]any {
		s := map[string]any{"session_id": "ses_own", "status": status, "hostname": host, "executor_profile": "coding", "project_dir": "/project", "executor_session_id": executor}
		if len(more) > 0 {
			s["last_resumed_at"] = more[0]
		}
		return s
	}
	const resumed = "2026-01-01T00:00:00Z"
	want := map[string]any{
		"bind": session("running", "executor-1"), "event": nil, "result event": nil, "update": session("finished", "executor-2", resumed),
		"session": session("finished", "executor-2", resumed), "status": "finished", "result": "done",
		"affinity":   map[string]any{"hostname": host, "executor_profile": "coding"},
		"sessions":   []any{session("finished", "executor-2", resumed)},
		"other":      "SessionClientError: 403: the path is that of another session",
		"bind other": "SessionClientError: 403: session_id is that of another session",
		"delete":     true, "delete again": false, "deleted": "SessionNotFoundError: 404: Session not found", "nowhere": "SessionClientError",
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(printed), &got); err != nil {
		t.Fatalf("the client printed %q: %v", printed, err)
	}
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s: got %v, want %v", name, got[name], want[name])
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	const message, result = `{"event_type":"message","role":"assistant","session_id":"ses_own"}`, `{"event_type":"result","result_text":"done","session_id":"ses_own"}`
	if events := strings.Join(d.events, "\n"); events != message+"\n"+result {
		t.Errorf("the coordinator has the events %s", events)
	}
	if len(d.sessions) != 1 || len(d.sessions["ses_other"]) != 2 {
		t.Errorf("the coordinator has the sessions %v", d.sessions)
	}
}

// TestExecutorsReachTheirCoordinator runs a session client in Python that knows no token: as an
// agent, and in a container without a network.
func TestExecutorsReachTheirCoordinator(t *testing.T) {
	t.Parallel()
	files := []Source{{Files: []File{{Path: "client.py", Content: sessionClient}}}}
	t.Run("agent", func(t *testing.T) {
		t.Parallel()
		d := newCoordinatorDouble(t)
		env := create(t, Config{Agent: Agent{Name: "command", Command: []string{"python3", "client.py", "invocation"}}, Coordinator: d.config(), Workspace: files})
		events, err := collect(t.Context(), env, Query{Prompt: "go"})
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		for _, ev := range events {
			said.WriteString(ev.Text())
		}
		d.check(t, said.String())
	})
	t.Run("docker", func(t *testing.T) {
		t.Parallel()
		d := newCoordinatorDouble(t)
		cfg := withPrograms(t)
		cfg.Coordinator, cfg.Workspace = d.config(), files
		out, err := create(t, cfg).Exec(t.Context(), "python3", "client.py")
		if err != nil {
			t.Fatal(err)
		}
		d.check(t, out)
	})
}

// TestTheCoordinatorIsWhereItWas attaches to a kept sandbox: the variables that its processes
// have lead to the coordinator again, for the same session only.
func TestTheCoordinatorIsWhereItWas(t *testing.T) {
	t.Parallel()
	d := newCoordinatorDouble(t)
	box := sandbox(t)
	cfg := Config{Sandbox: toKeep(box), Coordinator: d.config(), Workspace: []Source{{Files: []File{{Path: "client.py", Content: sessionClient}}}}}
	env := create(t, cfg)
	t.Cleanup(func() { _ = Remove(context.WithoutCancel(t.Context()), box, env.ID()) })
	address := env.gate.At.Variables()[runnerscripts.CoordinatorURL]
	ask := func() (int, error) {
		resp, err := http.Get(address + "/sessions/ses_own") // the local sandbox is this machine
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if status, err := ask(); err != nil || status != http.StatusOK {
		t.Fatalf("got %d, %v", status, err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if status, err := ask(); err == nil && status < 500 {
		t.Errorf("after Close: %d", status)
	}
	cfg.Sandbox, cfg.Workspace = box, nil
	again, err := Attach(t.Context(), cfg, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if status, err := ask(); err != nil || status != http.StatusOK {
		t.Errorf("after Attach: %d, %v", status, err)
	}
	out, err := again.Exec(t.Context(), "python3", "client.py")
	if err != nil {
		t.Fatal(err)
	}
	d.check(t, out)
}

// The audit log has each request to which the gateway adds the coordinator's key, and no other.
func TestTheAuditLogHasEachUseOfTheCoordinatorsKey(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	env := create(t, Config{Sandbox: sandbox(t), Coordinator: newCoordinatorDouble(t).config()})
	address := env.gate.At.Variables()[runnerscripts.CoordinatorURL]
	for _, path := range []string{"/sessions/ses_other", "/sessions/ses_own/status?x=y"} {
		resp, err := http.Get(address + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	open := httptest.NewServer(http.NotFoundHandler()) // needs no key
	defer open.Close()
	env = create(t, Config{Sandbox: sandbox(t), Coordinator: Coordinator{URL: open.URL, Profile: "coding", SessionID: "ses_own"}})
	resp, err := http.Get(env.gate.At.Variables()[runnerscripts.CoordinatorURL] + "/sessions/ses_own")
	if err != nil || resp.StatusCode != http.StatusNotFound {
		t.Fatalf("got %v, %v", resp, err)
	}
	resp.Body.Close()
	text, all := audited(t)
	if len(all) != 1 || all[0].Event != audit.Credential || all[0].Credential != "coordinator" || all[0].Request != "GET /sessions/ses_own/status" || strings.Contains(text, hostKey) {
		t.Errorf("the log has %s", text)
	}
}

func TestTheCoordinatorNeedsItsKey(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Coordinator){
		"coordinator.profile":    func(c *Coordinator) { c.Profile = "" },
		"coordinator.credential": func(c *Coordinator) { c.Credential.Env = "NO_SUCH_VARIABLE_HERE" },
	} {
		c := Coordinator{URL: "http://127.0.0.1:1", Profile: "p", Credential: KeySource{Env: "TEST_HOST_KEY"}}
		change(&c)
		if _, err := Create(t.Context(), Config{Sandbox: sandbox(t), Coordinator: c}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestACopyHasASessionOfItsOwnAtTheCoordinator checks that a copy cannot report as the original.
func TestACopyHasASessionOfItsOwnAtTheCoordinator(t *testing.T) {
	env := create(t, Config{Coordinator: Coordinator{URL: "http://127.0.0.1:1", Profile: "p", SessionID: "ses_1"}})
	c := forked(t, env, 1)[0]
	if is, was := c.gate.At, env.gate.At; was.CoordinatorSession != "ses_1" || is.CoordinatorSession != c.SessionID() || is.Token == was.Token {
		t.Errorf("the copy is %q at the coordinator, the original %q", is.CoordinatorSession, was.CoordinatorSession)
	}
}
