package main

import (
	"bytes"
	"context"
	"iter"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestARunnerDoesNotDelegate(t *testing.T) {
	reviewer := file(t, "reviewer.yaml", "agent: script\n")
	config := file(t, "runner.yaml", "agent: script\ndelegation:\n  agents:\n    reviewer: {config: "+reviewer+"}\n")
	for _, args := range [][]string{{"--agent", "script", "--delegate", "reviewer=" + reviewer}, {"--config", config}} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), nil, &out, &errOut, append([]string{"runner", "--sandbox", "local", "--coordinator", "http://127.0.0.1:1"}, args...))
		if code != exitUsage || !strings.Contains(errOut.String(), "starts no others") {
			t.Errorf("%v: %d, %s", args, code, errOut.String())
		}
	}
}

// damaged is a store in which the record that has changed last is damaged.
type damaged struct{ store.Store }

func (d damaged) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		if !yield(store.Record{ID: "other"}, store.ErrCorrupt) || f.Limit == 1 {
			return
		}
		d.Store.List(ctx, f)(yield)
	}
}

// A damaged record of another session does not hide that of a run.
func TestARunnerFindsItsSessionBesideADamagedOne(t *testing.T) {
	host, err := session.NewHost(session.HostConfig{Store: damaged{store.NewMemory()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := host.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	cfg := environment.Config{Agent: environment.Agent{Name: "script"}, Sandbox: environment.Sandbox{Type: "local"}}
	first, release, err := open(t.Context(), host, cfg, coordapi.Run{SessionID: "ses_1"})
	if err != nil {
		t.Fatal(err)
	}
	release()
	again, release, err := open(t.Context(), host, cfg, coordapi.Run{SessionID: "ses_1", ExecutorSessionID: first.ID()})
	if err != nil {
		t.Fatal(err)
	}
	release()
	if again.ID() != first.ID() {
		t.Errorf("the run has the session %s, want %s", again.ID(), first.ID())
	}
}
