package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/internal/egress"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestRulesChangeWhileItRuns checks that new rules also end running exchanges.
func TestRulesChangeWhileItRuns(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begin")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	host(t, "plain.test", 80, false, endless)
	host(t, "secure.test", 443, true, endless)
	g, at := serveConfig(t, Config{AllowHosts: []string{}})
	client := through(t, at)
	if status, _, err := get(t, client, "http://plain.test/"); err != nil || status != 403 {
		t.Errorf("got %d, %v", status, err)
	}
	if err := g.SetAllowHosts([]string{"plain.test", "b/d"}); !errors.Is(err, ErrConfig) {
		t.Errorf("got %v", err)
	}
	if err := g.SetAllowHosts([]string{"plain.test", "secure.test"}); err != nil {
		t.Fatal(err)
	}
	var running []io.Reader
	for _, address := range []string{"http://plain.test/", "https://secure.test/"} {
		resp, err := client.Do(request(t, "GET", address, ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		if _, err := io.ReadFull(resp.Body, make([]byte, len("begin"))); err != nil { // else the gateway could still refuse it
			t.Fatal(err)
		}
		running = append(running, resp.Body)
	}
	if err := g.SetAllowHosts([]string{"secure.test"}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(running[0]); err == nil {
		t.Error("a request went on")
	}
	if err := g.SetAllowHosts(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(running[1]); err == nil {
		t.Error("a tunnel went on")
	}
	off, _ := serveConfig(t, Config{})
	if err := off.SetAllowHosts([]string{"plain.test"}); !errors.Is(err, ErrConfig) {
		t.Errorf("without a list: %v", err)
	}
	if _, err := New(Config{AllowHosts: []string{"127.0.0.1"}}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got %v", err)
	}
}

// TestAFloodOfConnectionsIsItsSandboxsOwn opens silent tunnels, answers that are not read, and
// connections without a request. Meanwhile it sends requests from the same sandbox and another.
func TestAFloodOfConnectionsIsItsSandboxsOwn(t *testing.T) {
	host(t, "plain.test", 80, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/endless" {
			_, _ = io.Copy(w, zeros{})
		}
	})
	host(t, "secure.test", 443, true, func(http.ResponseWriter, *http.Request) {})
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") }))
	defer model.Close()
	cfg := Config{AllowHosts: []string{"plain.test", "secure.test"}, Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", URL: model.URL, Key: realKey}}}
	g, hostile := serveConfig(t, cfg)
	g.outward.helloTimeout = time.Hour // a silent tunnel stays open, however long it takes to open all
	_, at := serveConfig(t, cfg)
	for range maxExchanges / 2 {
		_, answer := raw(t, hostile, "GET http://plain.test/endless HTTP/1.1\r\nHost: x\r\n"+basic(hostile.Token)+"\r\n")
		if _, err := answer.ReadByte(); err != nil { // it counts only once it is answered
			t.Fatal(err)
		}
		if status, _, _, _ := connect(t, hostile, "secure.test:443", basic(hostile.Token)); status != 200 {
			t.Fatalf("got %d", status)
		}
	}
	if status, reason, conn, _ := connect(t, hostile, "secure.test:443", basic(hostile.Token)); status != 503 || !strings.Contains(reason, "128") {
		t.Errorf("one more: %d %s", status, reason)
	} else {
		_ = conn.Close()
	}
	for _, one := range []*runnerscripts.Gateway{hostile, at} {
		if status, body := ask(t, request(t, "POST", one.URL+"/anthropic/v1/messages", "{}", "X-Api-Key", one.Token)); status != 200 || body != "answer" {
			t.Errorf("a model: %d %s", status, body)
		}
	}
	for range 2 * maxConns {
		raw(t, hostile, "CONNECT secure.test:443 HTTP/1.1\r\n") // never completed
	}
	if status, _, err := get(t, through(t, at), "https://secure.test/"); err != nil || status != 200 {
		t.Errorf("got %d, %v", status, err)
	}
}

// TestATunnelWithoutTrafficIsClosed also checks that a tunnel with traffic stays open.
func TestATunnelWithoutTrafficIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, inside := net.Pipe()
		far, outside := net.Pipe()
		carried := make(chan struct{})
		o := &outward{tunnelIdle: tunnelIdle}
		go func() { o.carry(near, near, far); close(carried) }()
		data := make([]byte, 1)
		for range 3 {
			for _, way := range [][2]net.Conn{{inside, outside}, {outside, inside}} {
				time.Sleep(tunnelIdle - time.Second) // on the bubble's fake clock
				if _, err := way[0].Write(data); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(way[1], data); err != nil {
					t.Fatal(err)
				}
			}
		}
		last := time.Now()
		if _, err := inside.Read(data); err == nil || time.Since(last) != tunnelIdle {
			t.Errorf("after %v: %v", time.Since(last), err)
		}
		<-carried
	})
}

// TestHostsThatCannotBeReached checks that the error comes at once and gives the reason.
func TestHostsThatCannotBeReached(t *testing.T) {
	const down = "127.0.0.1:1" // any other free port may belong to another test when it is dialed
	for _, port := range []uint16{80, 443} {
		defer egress.AddTestHost(egress.Target{Host: "down.test", Port: port}, down)()
		defer egress.AddTestHost(egress.Target{Host: "garbage.test", Port: port}, strings.TrimPrefix(serveGarbage(t), "http://"))()
	}
	_, at := serveConfig(t, Config{AllowHosts: []string{"*"}})
	if status, reason, _, _ := connect(t, at, "down.test:443", basic(at.Token)); status != 502 || !strings.Contains(reason, "refused") {
		t.Errorf("got %d %s", status, reason)
	}
	for _, name := range []string{"down.test", "garbage.test"} {
		if status, body, err := get(t, through(t, at), "http://"+name+"/"); err != nil || status != 502 || !strings.Contains(body, "cannot be reached") {
			t.Errorf("%s: %d %s, %v", name, status, body, err)
		}
	}
}
