package coordinator_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// subject is a coordinator with a client.
type subject struct {
	t      *testing.T
	dir    string
	agents []coordapi.Agent
	c      *coordinator.Coordinator
	mux    *http.ServeMux
	caller coordinator.Caller
}

// start opens a coordinator in a new folder. It is closed when the test ends.
func start(t *testing.T, agents ...coordapi.Agent) *subject {
	t.Helper()
	s := &subject{t: t, dir: t.TempDir(), agents: agents, caller: coordinator.Caller{Admin: true}}
	s.open()
	t.Cleanup(func() { s.close() })
	return s
}

func (s *subject) open() {
	s.t.Helper()
	c, err := coordinator.Open(context.WithoutCancel(s.t.Context()), coordinator.Config{Dir: s.dir, Agents: s.agents})
	if err != nil {
		s.t.Fatal(err)
	}
	s.c, s.mux = c, http.NewServeMux()
	for _, r := range c.Routes() {
		s.mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, req *http.Request) { c.Serve(r, w, req, s.caller) })
	}
}

func (s *subject) close() {
	if err := s.c.Close(); err != nil {
		s.t.Error(err)
	}
}

// restart closes the coordinator and opens it again, as a server that was stopped.
func (s *subject) restart() {
	s.t.Helper()
	s.close()
	s.open()
}

// as returns the same coordinator for another caller.
func (s *subject) as(name string) *subject {
	other := &subject{t: s.t, c: s.c, mux: http.NewServeMux(), caller: coordinator.Caller{Name: name}}
	for _, r := range s.c.Routes() {
		other.mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, req *http.Request) { s.c.Serve(r, w, req, other.caller) })
	}
	return other
}

// ask sends a request.
func (s *subject) ask(method, path, body string) (int, string) {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.mux.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// must sends a request that must succeed, and decodes the answer.
func (s *subject) must(method, path, body string, to any) {
	s.t.Helper()
	status, answer := s.ask(method, path, body)
	if status/100 != 2 {
		s.t.Fatalf("%s %s %s: %d %s", method, path, body, status, answer)
	}
	if to != nil {
		if err := json.Unmarshal([]byte(answer), to); err != nil {
			s.t.Fatalf("%s %s: %q: %v", method, path, answer, err)
		}
	}
}

// fails sends a request that must fail, with a text in its answer.
func (s *subject) fails(what string, method, path, body string, status int, says string) {
	s.t.Helper()
	got, answer := s.ask(method, path, body)
	if got != status || !strings.Contains(answer, says) || !strings.HasPrefix(answer, `{"detail":`) {
		s.t.Errorf("%s: %d %s, want %d with %q", what, got, answer, status, says)
	}
}

// run asks for a run.
func (s *subject) run(body string) coordapi.Run {
	s.t.Helper()
	var r coordapi.Run
	s.must("POST", "/runs", body, &r)
	return r
}

// start begins a session with a prompt.
func (s *subject) startSession() coordapi.Run {
	s.t.Helper()
	return s.run(`{"type":"start_session","prompt":"test binding"}`)
}

// register adds a runner and returns its ID.
func (s *subject) register(body string) string {
	s.t.Helper()
	var r coordapi.Registered
	s.must("POST", "/runner/register", body, &r)
	return r.RunnerID
}

const coding = `{"hostname":"h","project_dir":"/p","executor_profile":"coding","executor":{"type":"claude"}}`

// poll asks once what a runner is to do.
func (s *subject) poll(runner string) (p coordapi.Polled) {
	s.t.Helper()
	status, answer := s.ask("GET", "/runner/runs?runner_id="+runner, "")
	if status == http.StatusNoContent {
		return p
	}
	if err := json.Unmarshal([]byte(answer), &p); err != nil || status != http.StatusOK {
		s.t.Fatalf("poll: %d %s", status, answer)
	}
	return p
}

// claim polls for a run that must come.
func (s *subject) claim(runner string) coordapi.Run {
	s.t.Helper()
	p := s.poll(runner)
	if p.Run == nil {
		s.t.Fatalf("the runner got %+v", p)
	}
	return *p.Run
}

// report reports on a run.
func (s *subject) report(runner, run, what, more string) {
	s.t.Helper()
	s.must("POST", "/runner/runs/"+run+"/"+what, `{"runner_id":"`+runner+`"`+more+`}`, nil)
}

// begin takes the next run of a runner to its start.
func (s *subject) begin(runner string) coordapi.Run {
	s.t.Helper()
	r := s.claim(runner)
	s.report(runner, r.ID, "started", "")
	return r
}

// finish takes the next run of a runner through to its end.
func (s *subject) finish(runner, result string) coordapi.Run {
	s.t.Helper()
	r := s.begin(runner)
	text, _ := json.Marshal(result)
	s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"result","result_text":`+string(text)+`}`, nil)
	s.report(runner, r.ID, "completed", `,"status":"success"`)
	return r
}

func (s *subject) session(id string) (v coordapi.Session) {
	s.t.Helper()
	var answer struct{ Session *coordapi.Session }
	answer.Session = &v
	s.must("GET", "/sessions/"+id, "", &answer)
	return v
}

func (s *subject) state(run string) (r coordapi.Run) {
	s.t.Helper()
	s.must("GET", "/runs/"+run, "", &r)
	return r
}

// bubble runs a test in which time passes only when all wait.
func bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// follow reads a stream of server-sent events.
type follow struct {
	t      *testing.T
	lines  *bufio.Scanner
	cancel context.CancelFunc
	done   chan struct{}
}

func (s *subject) follow(path, last string) *follow {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	out, in := io.Pipe()
	f := &follow{t: s.t, lines: bufio.NewScanner(out), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		s.mux.ServeHTTP(&pipeWriter{in, http.Header{}}, r)
		_ = in.Close()
	}()
	return f
}

// pipeWriter is a response writer whose reader may be slow.
type pipeWriter struct {
	*io.PipeWriter
	header http.Header
}

func (p *pipeWriter) Header() http.Header { return p.header }
func (p *pipeWriter) WriteHeader(int)     {}
func (p *pipeWriter) Flush()              {}

// next returns the next event.
func (f *follow) next() (id, kind, data string) {
	f.t.Helper()
	for f.lines.Scan() {
		key, value, _ := strings.Cut(f.lines.Text(), ": ")
		switch key {
		case ":": // after half a minute without an event
			f.t.Fatal("there is no event")
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			return id, kind, value
		}
	}
	f.t.Fatal("the stream has ended")
	return
}

func (f *follow) stop() {
	f.cancel()
	for f.lines.Scan() {
	}
	<-f.done
}
