package runner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/runner"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A runner that lets its runs end still stops one that a client stops.
func TestARunnerThatEndsStillStops(t *testing.T) {
	s := serve(t)
	waits := make(chan struct{}, 1)
	r := take(t, s, func(cfg *runner.Config, _ *environment.Config) {
		cfg.Drain = time.Hour
		cfg.Say = func(format string, _ ...any) {
			if strings.HasPrefix(format, "waiting up to") {
				waits <- struct{}{}
			}
		}
	})
	run := s.start("wait")
	s.await(run, coordapi.RunRunning)
	r.stop()
	<-waits
	queued := s.start("x") // comes to no runner that ends
	var stopped struct{ OK bool }
	s.ask("POST", "/sessions/"+run.SessionID+"/stop", "", &stopped)
	s.await(run, coordapi.RunStopped)
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	var list struct{ Runners []coordapi.Runner }
	if s.ask("GET", "/runners", "", &list); len(list.Runners) != 0 {
		t.Errorf("there is %+v", list)
	}
	s.await(queued, coordapi.RunPending)
}
