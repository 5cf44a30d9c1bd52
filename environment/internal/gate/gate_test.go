package gate

import (
	"context"
	"net/http"
	"testing"

	"github.com/agentenv-dev/agentenv/executor/rpc"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// An agent that is started again has the token of the first one.
func TestRenewIsForTheTokenOfAnExecutorToo(t *testing.T) {
	p, err := local.New(t.Context(), local.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = p.Terminate(context.WithoutCancel(t.Context())) }()
	g, err := Open(t.Context(), p, Config{Executor: &rpc.Config{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	defer http.DefaultClient.CloseIdleConnections()
	for _, want := range []int{http.StatusUnauthorized, http.StatusBadRequest} { // the second one for its body
		if want == http.StatusUnauthorized {
			g.executors.Tokens.Revoke(session)
		} else {
			g.Renew()
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.At.URL+runnerscripts.ExecutorPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+g.At.Executor)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s, want %d", resp.Status, want)
		}
	}
}
