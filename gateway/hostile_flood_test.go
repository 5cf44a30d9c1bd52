//go:build !race

package gateway

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
)

// An endless answer needs little memory and ends when the agent disconnects. A recording stops
// before such an answer, and Close returns an error.
func TestFloodOfAnAnswerWithoutEndNeedsLittleMemory(t *testing.T) {
	part := bytes.Repeat([]byte("word"), 1<<18)
	gone := make(chan struct{}, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { gone <- struct{}{} }()
		for r.Context().Err() == nil {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	for _, record := range []io.Writer{nil, io.Discard} {
		g, err := New(Config{Record: record, Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", URL: server.URL, Key: realKey}}})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- g.Serve(l) }()
		at, limit := g.At(l.Addr()), int64(32<<20)
		if record != nil {
			limit = 256 << 20 // the recorder's buffer grows to 64 MiB
		}
		testmemory.AtMost(t, limit, func() {
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, "POST", at.URL+"/anthropic/v1/messages", "{}", "X-Api-Key", at.Token))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if n, err := io.CopyN(io.Discard, resp.Body, 256<<20); err != nil {
				t.Errorf("after %d bytes: %v", n, err)
			}
		})
		<-gone
		if err := g.Close(); (err != nil) != (record != nil) || err != nil && !strings.Contains(err.Error(), "more than 64 MiB") {
			t.Errorf("recorded: %v, closed with %v", record != nil, err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// A flood of the largest calls, each made to be expensive, takes bounded memory, and nothing of it
// is left.
func TestFloodOfHostileCallsTakesBoundedMemory(t *testing.T) {
	bodies := hostileBodies()
	url, token := discarding(t)
	testmemory.AtMost(t, 256<<20, func() {
		var calls sync.WaitGroup
		for _, body := range bodies {
			calls.Go(func() {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				if status := send(t.Context(), client, url, token, body); status != http.StatusOK && status != http.StatusForbidden {
					t.Errorf("status %d", status)
				}
			})
		}
		calls.Wait()
	})
	if program.held != 0 {
		t.Errorf("%d bytes are held", program.held)
	}
}
