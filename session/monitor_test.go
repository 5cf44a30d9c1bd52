package session

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// terminations returns why the sandboxes of a session ended.
func terminations(t *testing.T, s *AgentSession) []string {
	t.Helper()
	var reasons []string
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypeEnvironmentTerminated {
			reasons = append(reasons, payload[runnerscripts.EnvironmentTerminated](t, ev).Reason)
		}
	}
	return reasons
}

func TestAnIdleSandboxIsEndedWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		s := startFake(t, Config{IdleTimeout: time.Hour, HealthInterval: -1}, first, second)
		complete(t, prompt(t, s, "a"))
		time.Sleep(50 * time.Minute)
		complete(t, prompt(t, s, "b")) // the idle timeout restarts
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if got := terminations(t, s); len(got) != 0 {
			t.Fatalf("ended too early: %v", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := terminations(t, s); len(got) != 1 || got[0] != reasonIdle || !first.closed {
			t.Errorf("terminations %v, closed %v", got, first.closed)
		}
		complete(t, prompt(t, s, "c"))
		if st, _ := s.State(t.Context()); st.Environment.Starts != 2 {
			t.Errorf("%d sandboxes", st.Environment.Starts)
		}
	})
}

func TestARunningQueryIsNotIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.query = hang
		s := startFake(t, Config{IdleTimeout: time.Minute, HealthInterval: -1}, f)
		turn := prompt(t, s, "a")
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := terminations(t, s); len(got) != 0 {
			t.Errorf("ended while a query was running: %v", got)
		}
		if err := turn.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
		complete(t, turn)
	})
}

func TestASandboxThatIsGoneIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		s := startFake(t, Config{HealthInterval: time.Minute}, first, second)
		complete(t, prompt(t, s, "a"))
		first.setHealthy(primitives.ErrUnavailable)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if got := terminations(t, s); len(got) != 1 || got[0] != reasonUnhealthy || !first.removed {
			t.Fatalf("terminations %v, removed %v", got, first.removed)
		}
		complete(t, prompt(t, s, "b"))
	})
}

// A container that was stopped has its files when it is started again.
func TestAKeptSandboxThatIsGoneIsNotRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		cfg := Config{HealthInterval: time.Minute}
		cfg.Environment.Sandbox.Keep = true
		s := startFake(t, cfg, first, second)
		complete(t, prompt(t, s, "a"))
		first.setHealthy(primitives.ErrUnavailable)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if got := terminations(t, s); len(got) != 1 || !first.closed || first.removed {
			t.Fatalf("terminations %v, closed %v, removed %v", got, first.closed, first.removed)
		}
		said := slices.ContainsFunc(logOf(t, s), func(ev runnerscripts.Event) bool {
			return ev.Type == runnerscripts.TypeLog && strings.Contains(string(ev.Payload), "envctl rm "+first.ID())
		})
		if !said {
			t.Error("nothing says that the old sandbox may still run")
		}
		complete(t, prompt(t, s, "b"))
	})
}

func TestASandboxThatDiesUnderAQueryFailsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		first.query = hang
		s := startFake(t, Config{HealthInterval: time.Minute}, first, second)
		turn := prompt(t, s, "a")
		synctest.Wait()
		first.setHealthy(primitives.ErrTerminated)
		_, err := turn.Wait(t.Context())
		var failed *QueryError
		if !errors.As(err, &failed) || !errors.Is(err, errUnhealthy) {
			t.Errorf("query in a sandbox that died: %v", err)
		}
		complete(t, prompt(t, s, "b"))
		inOrder(t, logOf(t, s), runnerscripts.TypeEnvironmentHealth, runnerscripts.TypeQueryFailed,
			runnerscripts.TypeEnvironmentTerminated, runnerscripts.TypeEnvironmentReady, runnerscripts.TypeQueryCompleted)
	})
}

func TestOneLostAnswerDoesNotEndASandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := startFake(t, Config{HealthInterval: time.Minute}, f)
		complete(t, prompt(t, s, "a"))
		f.setHealthy(errors.New("connection reset"))
		time.Sleep(unhealthyAfter*time.Minute - time.Second)
		synctest.Wait()
		f.setHealthy(nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := terminations(t, s); len(got) != 0 {
			t.Errorf("terminations %v", got)
		}
		if n := count(logOf(t, s), runnerscripts.TypeEnvironmentHealth); n != unhealthyAfter {
			t.Errorf("%d environment_health events for %d changes", n, unhealthyAfter)
		}
		if f.probes < 60 {
			t.Errorf("%d probes in an hour", f.probes)
		}
	})
}

func TestAnUnresponsiveSandboxIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := startFake(t, Config{HealthInterval: time.Minute}, f)
		complete(t, prompt(t, s, "a"))
		f.setHealthy(errSilence)
		time.Sleep(unhealthyAfter*time.Minute + unhealthyAfter*probeTimeout)
		synctest.Wait()
		if got := terminations(t, s); len(got) != 1 || got[0] != reasonUnhealthy {
			t.Errorf("terminations %v", got)
		}
	})
}

func TestASessionAddsNoGraceToThatOfItsAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.query = hang
		s := startFake(t, Config{HealthInterval: -1}, f)
		turn := prompt(t, s, "a")
		synctest.Wait()
		began := time.Now()
		if err := s.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
		if done := complete(t, turn); done.StopReason != runnerscripts.StopCancelled {
			t.Errorf("stop reason %q", done.StopReason)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it was ended after %v", took)
		}
	})
}
