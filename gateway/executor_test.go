package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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

// Requests of executors that do not end take nothing from those of others, and none may be without end.
func TestRequestsOfExecutorsHaveTheirOwnSlots(t *testing.T) {
	begun := make(chan bool, maxExecutors)
	_, at := serveConfig(t, Config{
		Executors: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			limited, ok := r.Body.(*body)
			begun <- ok && limited.limit > 0
			<-r.Context().Done()
		}),
		Upstreams: map[string]Upstream{"anthropic": {API: runnerscripts.APIAnthropic, Key: realKey, URL: answering(t, `{}`)}},
	})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	for range maxExecutors {
		sending.Go(func() {
			resp, err := client.Do(request(t, "POST", at.URL+runnerscripts.ExecutorPath, "x").WithContext(ctx))
			if err == nil {
				resp.Body.Close()
			}
		})
	}
	for range maxExecutors {
		if !<-begun {
			t.Error("its body may take for ever")
		}
	}
	if status, text := ask(t, request(t, "POST", at.URL+"/anthropic/v1/messages", `{"model":"m","messages":[]}`, "X-Api-Key", at.Token)); status != http.StatusOK {
		t.Errorf("a call: %d %s", status, text)
	}
}

// answering returns the address of a server with one answer.
func answering(t *testing.T, text string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	t.Cleanup(server.Close)
	return server.URL
}
