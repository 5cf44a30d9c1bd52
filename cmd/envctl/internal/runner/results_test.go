package runner_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/runner"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// procedural makes the agent of a runner a procedural executor, which gets the prompt as its second argument.
func procedural(t *testing.T) func(*runner.Config, *environment.Config) {
	t.Helper()
	config, err := json.Marshal(executor.Profile{Type: executor.Procedural, Command: []string{"/bin/sh", "-c", `case $2 in
		large) head -c 1200000 /dev/zero | tr '\\0' '<';;
		bad) echo out; exit 3;;
		*) printf '{"got":"%s"}' "$2";;
		esac`, "sh"}})
	if err != nil {
		t.Fatal(err)
	}
	return func(cfg *runner.Config, env *environment.Config) {
		env.Agent = environment.Agent{Name: "command", Config: config}
		cfg.Reports, cfg.Structured = true, true
	}
}

// results returns the results among the events of a session.
func (s *service) results(run coordapi.Run) (list []coordapi.Event) {
	s.t.Helper()
	var all struct{ Events []coordapi.Event }
	s.ask("GET", "/sessions/"+run.SessionID+"/events", "", &all)
	for _, ev := range all.Events {
		if ev.Type == coordapi.EventResult {
			list = append(list, ev)
		}
	}
	return list
}

// A procedural executor gets the parameters as JSON, and its result is there also if it fails.
func TestAProceduralExecutorGetsParameters(t *testing.T) {
	s := serve(t)
	take(t, s, procedural(t))
	for prompt, want := range map[string]struct {
		status coordapi.RunStatus
		data   string
	}{
		"x": {coordapi.RunCompleted, `{"got":"x"}`}, "bad": {coordapi.RunFailed, `{"return_code":3,"stdout":"out\n","stderr":""}`},
	} {
		run := s.start(prompt)
		s.await(run, want.status)
		if got := s.results(run); len(got) != 1 || string(got[0].ResultData) != want.data {
			t.Errorf("%s: the results are %+v, want %s", prompt, got, want.data)
		}
	}
}

// The text of a one_shot executor that fails is there, too, and the session says why it failed.
func TestAFailedExecutorHasAResult(t *testing.T) {
	s := serve(t)
	take(t, s, func(cfg *runner.Config, env *environment.Config) {
		env.Agent = environment.Agent{Name: "command", Config: json.RawMessage(`{"command":["/bin/sh","-c","echo partial; exit 3"]}`)}
		cfg.Reports = true
	})
	run := s.start("x")
	s.await(run, coordapi.RunFailed)
	if got := s.results(run); len(got) != 1 || got[0].ResultText != "partial\n" {
		t.Errorf("the results are %+v", got)
	}
	var now struct{ Session coordapi.Session }
	if s.ask("GET", "/sessions/"+run.SessionID, "", &now); !strings.Contains(now.Session.Error, "exit status 3") {
		t.Errorf("the session is %+v", now.Session)
	}
}

// A result that is larger than a body of the coordinator may be is cut, and its run is completed.
func TestALargeResultIsCut(t *testing.T) {
	s := serve(t)
	take(t, s, procedural(t))
	run := s.start("large")
	s.await(run, coordapi.RunCompleted)
	if got := s.results(run); len(got) != 1 || len(got[0].ResultData) < 1<<20 || !strings.HasSuffix(string(got[0].ResultData), `[cut]"`) {
		t.Errorf("there are %d results", len(got))
	}
}

// lines passes on the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// A token that was revoked is no coordinator that is away.
func TestARunnerSaysThatItsTokenIsRefused(t *testing.T) {
	s := serve(t)
	log := make(lines, 100)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.seen) == 0 { // the registration
			return false
		}
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	take(t, s, func(cfg *runner.Config, _ *environment.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log})
	})
	if line := <-log; !strings.Contains(line, "refuses the token") {
		t.Errorf("the log says %s", line)
	}
}

// A runner whose token is refused ends when its agents have ended, and not before: the reports that nobody takes take no time of --drain,
// and one line of the log.
func TestARunnerWithoutATokenEnds(t *testing.T) {
	s := serve(t)
	hold := filepath.Join(t.TempDir(), "hold")
	if err := syscall.Mkfifo(hold, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(hold, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	refused, draining := make(chan struct{}, 1000), make(chan struct{}, 1000)
	var revoked atomic.Bool
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		isEvent := strings.HasSuffix(r.URL.Path, "/events")
		if isEvent {
			revoked.Store(true)
		}
		if revoked.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
		if isEvent {
			refused <- struct{}{}
		}
		return revoked.Load()
	}
	log := make(lines, 100)
	r := take(t, s, func(cfg *runner.Config, env *environment.Config) {
		cfg.Drain = time.Hour
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Error})
		cfg.Say = func(format string, _ ...any) {
			if strings.HasPrefix(format, "waiting") {
				draining <- struct{}{}
			}
		}
		env.Agent.Config = json.RawMessage(`{"turns":[{"steps":[{"text":"begun"},{"run":["sh","-c","read x <` + hold + `; touch ` + hold + `.read"]}]}]}`)
	})
	s.start("x")
	<-refused
	r.stop()
	<-draining
	for len(refused) > 0 {
		<-refused
	}
	for range 2 { // while it drains and the agent is at work: it has had the answer to the first when it sends the second
		select {
		case <-refused:
		case err := <-r.ended:
			t.Errorf("the runner ended before its agent, with %v", err)
			r.ended <- err
		}
	}
	if _, err := held.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(hold + ".read"); err != nil {
		t.Errorf("the agent did not end by itself: %v", err)
	}
	if line := <-log; !strings.Contains(line, "does not know how a run ended") || !strings.Contains(line, "401 Unauthorized") || strings.Count(line, "\n") != 1 {
		t.Errorf("the log says %s", line)
	}
}

// A token that is refused for a while loses nothing, also after the agent has ended.
func TestATokenThatIsRefusedForAWhile(t *testing.T) {
	s := serve(t)
	refusals := 3
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/events") {
			return false
		}
		data, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(data))
		if err != nil || !strings.Contains(string(data), `"event_type":"result"`) || refusals == 0 {
			return false
		}
		refusals--
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	log, completed := make(lines, 100), make(chan struct{})
	take(t, s, func(cfg *runner.Config, _ *environment.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Error})
		cfg.Say = func(format string, args ...any) {
			if strings.HasSuffix(fmt.Sprintf(format, args...), ": completed") {
				close(completed)
			}
		}
	})
	run := s.start("x")
	select {
	case <-completed:
	case line := <-log:
		t.Errorf("the log says %s", line)
	}
	if got := s.results(run); len(got) != 1 || refusals != 0 {
		t.Errorf("the results are %+v, and %d refusals are left", got, refusals)
	}
}

// An address without a coordinator gets a hint: where that of a server is, unless the address has its path.
func TestAnAddressWithoutACoordinator(t *testing.T) {
	s := serve(t)
	for path, want := range map[string]string{"/elsewhere/": "/elsewhere/coordinator", "/coordinator": "of a user and a machine"} {
		r := take(t, s, func(cfg *runner.Config, _ *environment.Config) { cfg.URL += path })
		if err := r.end(t); err == nil || !strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "coordinator/coordinator") {
			t.Errorf("%s: the runner ended with %v", path, err)
		}
	}
}

// A coordinator that has no room for an event loses that event, and not the run.
func TestAnEventThatTheCoordinatorHasNoRoomForIsLost(t *testing.T) {
	s := serve(t)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		full := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events")
		if full {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
		return full
	}
	take(t, s, nil)
	s.await(s.start("x"), coordapi.RunCompleted)
}

// A coordinator that answers something else is named in the log, and asked again.
func TestACoordinatorThatAnswersGarbage(t *testing.T) {
	s := serve(t)
	log := make(lines, 100)
	var garbage atomic.Int32
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/runner/r") || garbage.Add(1)%2 == 0 {
			return false
		}
		_, _ = io.WriteString(w, "<html>")
		return true
	}
	take(t, s, func(cfg *runner.Config, _ *environment.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log})
	})
	if line := <-log; !strings.Contains(line, "the answer is none of a coordinator") {
		t.Errorf("the log says %s", line)
	}
	s.await(s.start("x"), coordapi.RunCompleted)
}

// A run whose start the coordinator refuses is not run.
func TestARunThatIsStoppedBeforeItStartsIsNotRun(t *testing.T) {
	s := serve(t)
	first := s.start("x")
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/runner/runs/"+first.ID+"/started" {
			stop := httptest.NewRequestWithContext(r.Context(), "POST", "/sessions/"+first.SessionID+"/stop", nil)
			s.server.Handler.ServeHTTP(httptest.NewRecorder(), stop)
		}
		return false
	}
	r := take(t, s, nil)
	s.await(first, coordapi.RunStopped)
	s.await(s.start("y"), coordapi.RunCompleted)
	if len(r.opened) != 1 {
		t.Errorf("%d sessions were opened", len(r.opened))
	}
}

// A run that comes again while it runs is run once.
func TestARunThatComesTwiceIsRunOnce(t *testing.T) {
	s := serve(t)
	again := make(chan coordapi.Run, 1)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/runner/runs" {
			return false
		}
		select {
		case run := <-again:
			if err := json.NewEncoder(w).Encode(coordapi.Polled{Run: &run}); err != nil {
				t.Error(err)
			}
			return true
		default:
			return false
		}
	}
	r := take(t, s, nil)
	first := s.start("wait")
	s.await(first, coordapi.RunRunning)
	<-r.opened
	again <- first
	for _, prompt := range []string{"wakes the poll", "comes after it"} {
		s.await(s.start(prompt), coordapi.RunCompleted)
	}
	if len(again) != 0 || len(r.opened) != 2 {
		t.Errorf("%d more sessions were opened; it has not come again: %d", len(r.opened), len(again))
	}
}

// A stop of a session that is not here is confirmed, else it would come for ever.
func TestAStopOfASessionThatIsNotHereIsConfirmed(t *testing.T) {
	s := serve(t)
	stops, confirmed := make(chan string, 1), make(chan coordapi.Report, 1)
	stops <- "ses_of_another_time"
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/runner/runs" && len(stops) > 0:
			_ = json.NewEncoder(w).Encode(coordapi.Polled{StopSessions: []string{<-stops}}) // the runner asks again if it fails
			return true
		case r.URL.Path == "/runner/sessions/ses_of_another_time/status":
			var in coordapi.Report
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				t.Error(err)
			}
			confirmed <- in
			return true
		}
		return false
	}
	r := take(t, s, nil)
	if in := <-confirmed; in.Status != "stopped" || in.RunnerID != r.id {
		t.Errorf("it said %+v", in)
	}
}

// Heartbeats name the runs that a runner has, so that they do not count as lost while an agent is silent.
func TestHeartbeatsNameTheRuns(t *testing.T) {
	s := serve(t)
	beats, runs := make(chan coordapi.Report, 100), make(chan *coordapi.Run, 1)
	runs <- &coordapi.Run{ID: "run_1", SessionID: "ses_1", Prompt: "wait"}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/runner/register":
			_ = json.NewEncoder(w).Encode(coordapi.Registered{RunnerID: "lnch_1", PollTimeoutSeconds: 1, HeartbeatIntervalSeconds: 1})
		case "/runner/heartbeat":
			var in coordapi.Report
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				t.Error(err)
			}
			beats <- in
		case "/runner/runs":
			select {
			case run := <-runs:
				_ = json.NewEncoder(w).Encode(coordapi.Polled{Run: run})
			case <-r.Context().Done():
			}
		}
		return true
	}
	r := take(t, s, func(cfg *runner.Config, _ *environment.Config) { cfg.MaxRuns = 1 })
	<-r.opened
	for in := range beats {
		if in.RunnerID != "lnch_1" {
			t.Errorf("it said %+v", in)
		}
		if slices.Equal(in.Runs, []string{"run_1"}) {
			break
		}
	}
}

// Runs that end within the time of Config.Drain are completed.
func TestARunnerLetsItsRunsEnd(t *testing.T) {
	s := serve(t)
	var hold string
	waits := make(chan struct{}, 1)
	r := take(t, s, func(cfg *runner.Config, env *environment.Config) {
		hold = filepath.Join(t.TempDir(), "hold")
		env.Agent.Config = json.RawMessage(strings.ReplaceAll(scenario, "hold", hold))
		if err := syscall.Mkfifo(hold, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Drain = time.Hour
		cfg.Say = func(format string, _ ...any) {
			if strings.HasPrefix(format, "waiting up to") {
				waits <- struct{}{}
			}
		}
	})
	run := s.start("x")
	<-r.opened
	s.await(run, coordapi.RunRunning)
	r.stop()
	<-waits
	if err := os.WriteFile(hold, []byte("held"), 0); err != nil { // the agent goes on now
		t.Fatal(err)
	}
	s.await(run, coordapi.RunCompleted)
	if err := r.end(t); err != nil {
		t.Error(err)
	}
}
