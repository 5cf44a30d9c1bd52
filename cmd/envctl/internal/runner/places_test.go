package runner_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/runner"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// Another program registers as the runner when that is about to say that it has ended.
func TestARunnerDoesNotRemoveItsSuccessor(t *testing.T) {
	s := serve(t)
	var r *takes
	var begun atomic.Bool
	s.before = func(_ http.ResponseWriter, req *http.Request) bool { // set before the runner asks
		if req.Method == http.MethodDelete && begun.CompareAndSwap(false, true) {
			gone := httptest.NewRequestWithContext(req.Context(), "DELETE", "/runners/"+r.id+"?self=true", nil)
			s.server.Handler.ServeHTTP(httptest.NewRecorder(), gone)
			var registered coordapi.Registered
			s.ask("POST", "/runner/register", `{"hostname":"h","executor_profile":"coding","instance":"another"}`, &registered)
		}
		return false
	}
	r = take(t, s, nil)
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	var list struct{ Runners []coordapi.Runner }
	if s.ask("GET", "/runners", "", &list); len(list.Runners) != 1 || list.Runners[0].Instance != "another" {
		t.Errorf("there is %+v", list)
	}
}

// A runner whose place another program has waits for it, and says so: a supervisor that starts a killed one again has no failures.
func TestARunnerWaitsForItsPlace(t *testing.T) {
	s := serve(t)
	first := take(t, s, nil)
	log := make(lines, 100)
	left := make(chan struct{})
	go func() {
		defer close(left)
		if line := <-log; !strings.Contains(line, "waits") || !strings.Contains(line, "duplicate_runner") {
			t.Errorf("the log says %s", line)
		}
		first.stop()
	}()
	second := take(t, s, func(cfg *runner.Config, _ *environment.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Warn})
	})
	if second.id == "" {
		log <- "nothing"
		<-left
		t.Fatalf("the second did not wait: %v", second.end(t))
	}
	<-left
	if err := first.end(t); err != nil || second.id != first.id {
		t.Errorf("the first is %s and ended with %v, the second is %s", first.id, err, second.id)
	}
	s.await(s.start("x"), coordapi.RunCompleted)
}

// A runner whose place another program has ends, also if that has a token of its own.
func TestARunnerEndsWhenAnotherCallerHasItsPlace(t *testing.T) {
	s := serve(t)
	s.caller = func(r *http.Request) coordinator.Caller {
		query := r.URL.Query()
		caller := coordinator.Caller{Name: query.Get("as")}
		query.Del("as")
		r.URL.RawQuery = query.Encode()
		return caller
	}
	var held sync.RWMutex // while the place changes hands
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("as") {
			held.RLock()
			defer held.RUnlock()
		}
		return false
	}
	log := make(lines, 100)
	first := take(t, s, func(cfg *runner.Config, _ *environment.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Warn})
	})
	held.Lock()
	var ok struct{ OK bool }
	s.ask("DELETE", "/runners/"+first.id+"?self=true&as=", "", &ok)
	var registered coordapi.Registered
	s.ask("POST", "/runner/register?as=other", `{"hostname":"h","executor_profile":"coding","instance":"another"}`, &registered)
	held.Unlock()
	select {
	case err := <-first.ended:
		if err == nil || !strings.Contains(err.Error(), "duplicate_runner") {
			t.Errorf("it ended with %v", err)
		}
		first.ended <- err
	case line := <-log:
		t.Errorf("it goes on: %s", line)
	}
}

func TestARunnerIsRemoved(t *testing.T) {
	s := serve(t)
	first := take(t, s, nil)
	var ok struct{ OK bool }
	s.ask("DELETE", "/runners/"+first.id, "", &ok)
	if err := <-first.ended; !errors.Is(err, runner.ErrRemoved) {
		t.Errorf("the one that was removed: %v", err)
	} else {
		first.ended <- err
	}
}
