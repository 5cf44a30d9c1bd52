package gateway

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestExecutorsHaveOnePathOfTheGateway(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "served "+r.URL.Path) })
	_, at := serveConfig(t, Config{Executors: served})
	_, without := serveConfig(t, Config{})
	defer http.DefaultClient.CloseIdleConnections()
	for url, want := range map[string]string{
		at.URL + runnerscripts.ExecutorPath:               "served /executor",
		at.URL + runnerscripts.ExecutorPath + "/x":        "executors use the path /executor",
		at.URL + runnerscripts.ExecutorPath + "/../other": "executors use the path /executor",
		at.URL + "/%65xecutor":                            "no such upstream",
		without.URL + runnerscripts.ExecutorPath:          "no such upstream",
	} {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v", url, body, err)
		}
	}
	taken := Config{Executors: served, Upstreams: map[string]Upstream{"executor": {API: runnerscripts.APIOpenAI, Key: realKey}}}
	if _, err := New(taken); !errors.Is(err, ErrConfig) {
		t.Errorf("an upstream with that path: %v", err)
	}
}
