package environment

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestCloseEndsARunningQuery(t *testing.T) {
	env := withQuery(t, patient)
	running := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		run := sync.OnceFunc(func() { close(running) })
		defer run()
		var last error
		for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
			if last = err; ev.Text() != "" {
				run()
			}
		}
		if !errors.Is(last, ErrClosed) {
			t.Errorf("the query ended with %v, want ErrClosed", last)
		}
	})
	<-running
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	tasks.Wait()
}

func TestCloseInsideTheLoopEndsIt(t *testing.T) {
	env := withQuery(t, patient)
	var last error
	for _, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
		last = err
		if err := env.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(last, ErrClosed) {
		t.Errorf("the loop ended with %v, want ErrClosed", last)
	}
}

func TestAnAgentThatEndsWithItsSandboxHasNotCompleted(t *testing.T) {
	env := withQuery(t, `read -r request
		trap 'echo "{\"type\":\"query_completed\",\"payload\":{\"stop_reason\":\"cancelled\"}}"; exit 0' TERM
		echo '{"type":"query_started"}'
		while :; do sleep 0.01; done`)
	var last error
	var events []runnerscripts.Event
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
		if last = err; err != nil {
			break
		}
		if events = append(events, ev); ev.Type == runnerscripts.TypeQueryStarted {
			if _, err := env.Primitive().Terminate(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := types(events), "query_started query_failed"; got != want || !errors.Is(last, primitives.ErrTerminated) {
		t.Errorf("events %q and %v, want %q and primitives.ErrTerminated", got, last, want)
	}
}

func TestADeadSandboxIsNoExitCode(t *testing.T) {
	env := withQuery(t, patient)
	var last error
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
		if last = err; ev.Text() != "" {
			if _, err := env.Primitive().Terminate(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !errors.Is(last, primitives.ErrTerminated) {
		t.Errorf("the query ended with %v, want primitives.ErrTerminated", last)
	}
	if _, err := collect(t.Context(), env, Query{Prompt: "next"}); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("the next query: %v, want primitives.ErrTerminated", err)
	}
	if err := env.Healthy(t.Context()); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("health: %v, want primitives.ErrTerminated", err)
	}
}

func TestNothingStaysOpen(t *testing.T) {
	testneed.Require(t, runtime.GOOS == "linux", "run this on Linux: open files are counted in /proc")
	noFilesLeft(t)
	use := func() int {
		env, err := Create(t.Context(), Config{
			Sandbox: sandbox(t), Workspace: []Source{{Files: []File{{Path: "a", Content: "1\n"}}}},
			Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(tenLines), ReadTranscript: fine()},
		})
		if err != nil {
			t.Fatal(err)
		}
		watch, err := env.WatchWorkspace(t.Context(), FilesOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := collect(t.Context(), env, Query{Prompt: "x"}); err != nil {
			t.Fatal(err)
		}
		if err := env.Patch(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := env.Close(); err != nil {
			t.Fatal(err)
		}
		for _, err := range watch {
			t.Error(err)
		}
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	first := use() // files that the runtime opens once are open now
	for range 3 {
		if open := use(); open > first {
			t.Errorf("%d files are open, and %d were", open, first)
		}
	}
}
