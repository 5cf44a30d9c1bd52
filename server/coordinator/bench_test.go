package coordinator_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// BenchmarkRun is a run from its request to its end, with one event, each step on the disk.
func BenchmarkRun(b *testing.B) {
	c, err := coordinator.Open(context.WithoutCancel(b.Context()), coordinator.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	mux := http.NewServeMux()
	for _, r := range c.Routes() {
		mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, req *http.Request) {
			c.Serve(r, w, req, coordinator.Caller{Admin: true})
		})
	}
	ask := func(method, path, body string) string {
		r := httptest.NewRequestWithContext(b.Context(), method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, r); w.Code/100 != 2 {
			b.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		return w.Body.String()
	}
	of := func(pattern, text string) string { return regexp.MustCompile(pattern).FindString(text) }
	runner := of(`lnch_\w+`, ask("POST", "/runner/register", coding))
	report := `{"runner_id":"` + runner + `"}`
	for b.Loop() {
		asked := ask("POST", "/runs", `{"type":"start_session","prompt":"x"}`)
		run, session := of(`run_[0-9a-f]{12}`, asked), of(`ses_[0-9a-f]{12}`, asked)
		ask("GET", "/runner/runs?runner_id="+runner, "")
		ask("POST", "/runner/runs/"+run+"/started", report)
		ask("POST", "/sessions/"+session+"/events", `{"event_type":"message"}`)
		ask("POST", "/runner/runs/"+run+"/completed", report)
		ask("DELETE", "/sessions/"+session, "")
	}
}
