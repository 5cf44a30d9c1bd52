package environment

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// holding forwards calls, but holds the first call with a tool's result until the client cancels
// it.
func holding(t *testing.T, api string) (handler http.Handler, held <-chan struct{}) {
	t.Helper()
	target, err := url.Parse(api)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }}
	pending := make(chan struct{})
	var once sync.Once
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		hold := false
		for _, result := range []string{`"tool_result"`, `_call_output"`, `"functionResponse"`} {
			if bytes.Contains(body, []byte(result)) {
				once.Do(func() { hold = true })
			}
		}
		if hold {
			close(pending)
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, r)
	}), pending
}

// TestATurnOutlivesTheProgramOfItsGateway kills the program that serves the gateway while a
// model's answer is pending. The agent retries when another program has attached, and finishes
// its turn.
func TestATurnOutlivesTheProgramOfItsGateway(t *testing.T) {
	t.Parallel()
	api := keyedModel(t)
	for _, c := range keyedAgents() {
		if c.agent.Name == "opencode" {
			continue // it does so too, but waits half a minute between retries
		}
		t.Run(c.name, func(t *testing.T) {
			cfg := c.local(t, api)
			if c.name == "codex" { // one agent tests the way out of a container
				cfg = c.inContainer(t, api)
			}
			handler, held := holding(t, api)
			cfg.Credentials = c.credentials(keyed(t, handler))
			box := cfg.Sandbox
			cfg.Sandbox = toKeep(box)
			id := killedWhen(t, cfg, twoCalls, func(lines *bufio.Scanner) {
				ended := make(chan struct{})
				go func() { // to the end of the host
					defer close(ended)
					for lines.Scan() {
						continue
					}
				}()
				select {
				case <-held:
				case <-ended:
					t.Error("the query has ended without a call that has a tool's result")
				}
			})
			cfg.Sandbox = box
			answered := func() {}
			if c.name == "claude" {
				answered = waitsForGateway(t, rootOf(box))
			}
			env, err := Attach(t.Context(), cfg, id)
			if err != nil {
				t.Fatal(err)
			}
			defer env.Close()
			answered()
			events, err := followed(t.Context(), env)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for _, ev := range events {
				text.WriteString(ev.Text())
			}
			if last := events[len(events)-1]; last.Type != runnerscripts.TypeQueryCompleted || !strings.Contains(text.String(), "The file is written.") {
				t.Errorf("it said %q, and ended with %s %s", text.String(), last.Type, last.Payload)
			}
		})
	}
}

// waitsForGateway sends a request to the gateway address that Claude Code has in the sandbox,
// while no gateway serves it. The returned function reads the gateway's answer.
func waitsForGateway(t *testing.T, root string) (answered func()) {
	t.Helper()
	pattern := regexp.MustCompile(`ANTHROPIC_BASE_URL=http://([\d.:]+)/`)
	address := ""
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range processes {
		environ, _ := os.ReadFile(name) // of another user, or gone
		if found := pattern.FindSubmatch(environ); found != nil && bytes.Contains(environ, []byte("HOME="+root)) {
			address = string(found[1])
		}
	}
	if err != nil || address == "" {
		t.Fatalf("no process of the sandbox has the address: %v", err)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "GET /anthropic/v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return func() {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized { // it has no token
			t.Errorf("the request got %d", resp.StatusCode)
		}
	}
}
