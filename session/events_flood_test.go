//go:build !race

package session

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// printing configures an agent that runs an awk program for each prompt and prints its output.
func printing(t *testing.T, program string) Config {
	t.Helper()
	shell := func(text string) []string { return []string{"/bin/sh", "-c", text} }
	fine := shell(`cat >/dev/null; echo '{"type":"result","ok":true}'`)
	cfg := scripted(t, steps())
	cfg.NoFiles = true
	cfg.Environment.Scripts.SetupSession, cfg.Environment.Scripts.ReadTranscript = fine, fine
	cfg.Environment.Scripts.ExecuteQuery = shell(`exec 3<&0; cat <&3 >/dev/null &
		echo '{"type":"query_started"}'; awk 'BEGIN {` + program + `}'
		echo '{"type":"query_completed","payload":{"stop_reason":"end_turn"}}'; wait`)
	return cfg
}

func TestFloodOfEventsTakesTheMemoryOfItsStoreAndEndsNothing(t *testing.T) {
	cfg := printing(t, `
		for (text = "x"; length(text) < 100000;) text = text text
		for (i = 0; i < 6000; i++) printf "{\"type\":\"agent_message_chunk\",\"payload\":{\"content\":{\"type\":\"text\",\"text\":\"%s\"}}}\n", text`)
	s := start(t, cfg)
	testmemory.AtMost(t, store.DefaultMaxLog*3/2, func() {
		complete(t, prompt(t, s, "one"))
	})
	if st, err := s.State(t.Context()); err != nil || st.LastSeq < 6000 || st.Query != nil {
		t.Errorf("state %+v, %v", st, err)
	}
}

func TestFloodOfPermissionRequestsTakesAGoroutineForEachThatWaits(t *testing.T) {
	cfg := printing(t, `
		for (i = 0; i < 20000; i++) printf "{\"type\":\"request_permission\",\"payload\":{\"id\":\"p%d\"}}\n", i`)
	cfg.Environment.PermissionTimeout = -1
	var asked, goroutines atomic.Int64
	before := int64(runtime.NumGoroutine())
	cfg.Environment.OnPermission = func(ctx context.Context, _ runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
		asked.Add(1)
		<-ctx.Done()
		goroutines.Store(max(goroutines.Load(), int64(runtime.NumGoroutine())-before))
		return runnerscripts.PermissionDecision{}
	}
	s := start(t, cfg)
	testmemory.AtMost(t, 32<<20, func() { complete(t, prompt(t, s, "go")) })
	if n := asked.Load(); n < 1 || n > 64 {
		t.Errorf("%d requests reached the application, want up to 64", n)
	}
	if n := goroutines.Load(); n > 64+50 {
		t.Errorf("%d goroutines", n)
	}
	if st, _ := s.State(t.Context()); len(st.Pending) > 0 {
		t.Errorf("%d requests wait after the query", len(st.Pending))
	}
}
