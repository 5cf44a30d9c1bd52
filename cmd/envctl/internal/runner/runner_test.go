package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/runner"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// takes is a runner of a test.
type takes struct {
	host   *session.Host
	stop   context.CancelFunc
	ended  chan error
	id     string
	opened chan struct{} // gets a value when a session is opened
}

const scenario = `{"turns":[
	{"when":"wait","steps":[{"text":"waiting"},{"delay_ms":600000}]},
	{"steps":[{"run":["sh","-c","test ! -e hold || cat hold"]},{"text":"done {{prompt}} {{history}}"}]}
]}`

// take starts a runner.
func take(t *testing.T, s *service, change func(*runner.Config, *environment.Config)) *takes {
	t.Helper()
	h, err := session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: session.Config{}})
	if err != nil {
		t.Fatal(err)
	}
	env := environment.Config{
		Agent:   environment.Agent{Name: "script", Config: json.RawMessage(scenario)},
		Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}},
	}
	out := &takes{host: h, ended: make(chan error, 1), opened: make(chan struct{}, 100)}
	registered := make(chan string, 1)
	transport := s.transport()
	cfg := runner.Config{
		URL: address, Client: &http.Client{Transport: transport}, MaxRuns: 4, Drain: 0, Logger: hclog.NewNullLogger(),
		Registration: coordapi.Registration{Hostname: "h", ExecutorProfile: "coding", Executor: coordapi.Executor{Type: "script"}},
		Registered:   func(id string) error { registered <- id; return nil },
		Say:          t.Logf,
	}
	if change != nil {
		change(&cfg, &env)
	}
	cfg.Open = func(ctx context.Context, r coordapi.Run) (*session.AgentSession, func(), error) {
		id := r.ExecutorSessionID
		if id == "" {
			made, err := h.Create(ctx, session.Config{Environment: env})
			if err != nil {
				return nil, nil, err
			}
			id = made.ID()
		}
		out.opened <- struct{}{}
		return h.Use(ctx, id)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	out.stop = cancel
	go func() { out.ended <- runner.Run(ctx, cfg) }()
	select {
	case out.id = <-registered:
	case err := <-out.ended:
		out.ended <- err
	}
	t.Cleanup(func() {
		out.end(t)
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
	})
	return out
}

// end ends the runner, and returns its error.
func (r *takes) end(t *testing.T) error {
	t.Helper()
	r.stop()
	err := <-r.ended
	r.ended <- err
	return err
}

// An outage of the coordinator ends neither the runner nor its sessions: what happened meanwhile is reported afterwards, in order.
func TestSessionsGoOnWhileTheCoordinatorIsAway(t *testing.T) {
	s := serve(t)
	var hold string
	log := make(lines, 100)
	r := take(t, s, func(cfg *runner.Config, env *environment.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Warn})
		hold = filepath.Join(t.TempDir(), "hold")
		env.Agent.Config = json.RawMessage(strings.ReplaceAll(scenario, "hold", hold))
		if err := syscall.Mkfifo(hold, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	run := s.start("x")
	agent, err := os.OpenFile(hold, os.O_WRONLY, 0) // returns when the agent reads
	if err != nil {
		t.Fatal(err)
	}
	s.down()
	s.refuse(4) // claude-agent-orchestrator gives up after three attempts
	_, err = agent.WriteString("held")
	if err = errors.Join(err, agent.Close()); err != nil { // the agent goes on now
		t.Fatal(err)
	}
	var said strings.Builder
	for line := range log { // until an event waits: the runner may end before a poll is answered again
		if said.WriteString(line); strings.Contains(line, "/events") {
			break
		}
	}
	s.up()
	s.await(run, coordapi.RunCompleted)
	var events struct{ Events []coordapi.Event }
	s.ask("GET", "/sessions/"+run.SessionID+"/events", "", &events)
	var kinds []string
	for _, ev := range events.Events {
		kinds = append(kinds, ev.Type+ev.Role)
	}
	if got := strings.Join(kinds, " "); got != "messageuser post_tool messageassistant result" {
		t.Errorf("the events are %s", got)
	}
	s.await(s.start("wait"), coordapi.RunRunning) // the runner polls again
	if err := r.end(t); err != nil {
		t.Errorf("the runner ended with %v", err)
	}
	close(log)
	for line := range log {
		said.WriteString(line)
	}
	if text := said.String(); !strings.Contains(text, "answers again") {
		t.Errorf("the log says %s", text)
	}
}

// Answers that are lost lead to requests that come again: each run is run once, and each event is one.
func TestLostAnswersChangeNothing(t *testing.T) {
	s := serve(t)
	lost := make(map[string]bool)
	s.lose = func(r *http.Request) bool { // the first answer of each kind, but for those that nobody repeats
		what := r.Method + " " + r.URL.Path
		if !strings.Contains(r.URL.Path, "/runner/") && !strings.HasSuffix(r.URL.Path, "/bind") && (r.Method != "POST" || !strings.HasSuffix(r.URL.Path, "/events")) {
			return false
		}
		first := !lost[what]
		lost[what] = true
		return first && what != "GET /runner/runs"
	}
	r := take(t, s, nil)
	run := s.start("x")
	s.await(run, coordapi.RunCompleted)
	if err := r.end(t); err != nil { // after its last report
		t.Error(err)
	}
	var events struct{ Events []coordapi.Event }
	if s.ask("GET", "/sessions/"+run.SessionID+"/events", "", &events); len(events.Events) != 4 {
		t.Errorf("there are %d events: %+v", len(events.Events), events.Events)
	}
	if len(r.opened) != 1 {
		t.Errorf("the session was opened %d times", len(r.opened))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if text := strings.Join(s.seen, "\n"); strings.Count(text, run.ID+"/started") != 2 || strings.Count(text, run.ID+"/completed") != 2 {
		t.Errorf("the requests were\n%s", text)
	}
}

// A run that the coordinator has released before it knew of the start comes again, also to the same runner, which runs it then.
func TestARunThatWasReleasedIsRunByTheSameRunner(t *testing.T) {
	s := serve(t)
	var r *takes
	ready := make(chan struct{})
	var once sync.Once
	s.before = func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, "/started") {
			return false
		}
		once.Do(func() { // forget the runner, which releases the run; the runner registers again
			<-ready
			gone := httptest.NewRequestWithContext(req.Context(), "DELETE", "/runners/"+r.id+"?self=true", nil)
			s.server.Handler.ServeHTTP(httptest.NewRecorder(), gone)
		})
		return false
	}
	r = take(t, s, nil)
	close(ready)
	s.await(s.start("x"), coordapi.RunCompleted)
}

// A resumed run goes on with the conversation: the session is stored, though no process of it is left.
func TestARunIsResumedAfterItsSandboxHasEnded(t *testing.T) {
	s := serve(t)
	r := take(t, s, nil)
	first := s.start("one")
	s.await(first, coordapi.RunCompleted)
	var now struct{ Session coordapi.Session }
	s.ask("GET", "/sessions/"+first.SessionID, "", &now)
	if err := r.host.Unload(t.Context(), now.Session.ExecutorSessionID); err != nil {
		t.Fatal(err)
	}
	var second coordapi.Run
	s.ask("POST", "/runs", `{"type":"resume_session","session_id":"`+first.SessionID+`","prompt":"two"}`, &second)
	s.await(second, coordapi.RunCompleted)
	var result struct{ Result string }
	if s.ask("GET", "/sessions/"+first.SessionID+"/result", "", &result); result.Result != "done two one" {
		t.Errorf("the result is %q", result.Result)
	}
}

func TestARunnerThatIsFullTakesNoMoreAndStillStops(t *testing.T) {
	s := serve(t)
	take(t, s, func(cfg *runner.Config, _ *environment.Config) { cfg.MaxRuns = 1 })
	one, two := s.start("wait 1"), s.start("2")
	s.await(one, coordapi.RunRunning)
	var got coordapi.Run
	if s.ask("GET", "/runs/"+two.ID, "", &got); got.Status != coordapi.RunPending {
		t.Errorf("the second one is %s", got.Status)
	}
	var stopped struct{ OK bool }
	s.ask("POST", "/sessions/"+one.SessionID+"/stop", "", &stopped)
	s.await(one, coordapi.RunStopped)
	s.await(two, coordapi.RunCompleted)
}

func TestARunThatFails(t *testing.T) {
	s := serve(t)
	take(t, s, func(_ *runner.Config, env *environment.Config) {
		env.Agent.Config = json.RawMessage(`{"turns":[{"steps":[{"fail":{"code":"api_error","message":"overloaded"}}]}]}`)
	})
	if got := s.await(s.start("x"), coordapi.RunFailed); !strings.Contains(got.Error, "overloaded") {
		t.Errorf("it failed with %q", got.Error)
	}
}

func TestARunnerEndsItsRunsAndLeaves(t *testing.T) {
	s := serve(t)
	r := take(t, s, nil)
	run := s.start("wait")
	s.await(run, coordapi.RunRunning)
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	s.await(run, coordapi.RunStopped)
	var list struct{ Runners []coordapi.Runner }
	if s.ask("GET", "/runners", "", &list); len(list.Runners) != 0 {
		t.Errorf("there is %+v", list)
	}
}
