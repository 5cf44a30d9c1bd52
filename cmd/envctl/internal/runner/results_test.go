package runner_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

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
