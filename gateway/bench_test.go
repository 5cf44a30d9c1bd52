package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// BenchmarkFirstByte compares the time to the first event of an answer with that of a direct
// call, and BenchmarkStream the rate of a long answer.
func BenchmarkFirstByte(b *testing.B) { both(b, "data: 1\n\n", 1) }

func BenchmarkStream(b *testing.B) { both(b, string(make([]byte, 32<<10)), 512) }

func both(b *testing.B, part string, parts int) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range parts {
			_, _ = io.WriteString(w, part)
		}
	}))
	defer server.Close()
	_, at := serveConfig(b, Config{Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", URL: server.URL, Key: realKey}}})
	for _, c := range []struct{ name, url string }{{"direct", server.URL}, {"gateway", at.URL + "/anthropic"}} {
		b.Run(c.name, func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			b.SetBytes(int64(len(part) * parts))
			for b.Loop() {
				resp, err := client.Do(request(b, "POST", c.url+"/v1/messages", "{}", "X-Api-Key", at.Token))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

// BenchmarkIdle reports the memory of a gateway that is served and idle.
func BenchmarkIdle(b *testing.B) {
	cfg := Config{Upstreams: map[string]Upstream{}}
	for _, api := range []runnerscripts.ModelAPI{runnerscripts.APIAnthropic, runnerscripts.APIOpenAI, runnerscripts.APIGemini} {
		cfg.Upstreams[string(api)] = Upstream{API: api, Key: realKey}
	}
	const gateways = 1000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		ends := make([]func(), gateways)
		for i := range ends {
			g, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			_, ends[i] = start(b, g)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		for _, end := range ends {
			end()
		}
	}
	b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/gateways, "B/gateway")
}

// hostileBody returns the largest body that the gateway takes, made of part.
func hostileBody(head, part, tail string) []byte {
	out := append(make([]byte, 0, maxBody), head...)
	out = append(out, bytes.Repeat([]byte(part), (maxBody-len(head)-len(tail))/len(part))...)
	return append(out, tail...)
}

// hostileBodies are bodies that take long to read: most are read to their end.
func hostileBodies() map[string][]byte {
	return map[string][]byte{
		"members":    hostileBody(`{"messages":[{`, `"a":0,`, `"b":0}]}`),
		"tools":      hostileBody(`{"tools":[{"type":"namespace","tools":[`, `{},`, `{}]}]}`),
		"escapes":    hostileBody(`{"messages":[{"content":"`, `\u0020`, `"}]}`),
		"copied":     hostileBody(`{"messages":[{"content":"`, `word `, `"}],"tools":[{"type":"web_search"}]}`),
		"one number": hostileBody(`{"messages":`, `1`, `}`),
	}
}

// discarding serves a gateway to an API that reads calls and answers at once.
func discarding(tb testing.TB) (url string, token string) {
	tb.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	tb.Cleanup(server.Close)
	_, at := serveConfig(tb, Config{Upstreams: map[string]Upstream{"openai": {API: "openai", URL: server.URL, Key: realKey}}})
	return at.URL + "/openai/responses", at.Token
}

// send sends a call and returns its status; 0 if it fails.
func send(ctx context.Context, client *http.Client, url, token string, body []byte) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("X-Api-Key", token)
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// BenchmarkHostileCall reports the time until the answer to a hostile call of 64 MiB, and the
// peak of the heap.
func BenchmarkHostileCall(b *testing.B) {
	for name, body := range hostileBodies() {
		b.Run(name, func(b *testing.B) {
			url, token := discarding(b)
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for b.Loop() {
				if status := send(b.Context(), client, url, token, body); status == 0 {
					b.Fatal("no answer")
				}
			}
			b.StopTimer()
			peak := testmemory.Peak(b, func() { send(b.Context(), client, url, token, body) })
			b.ReportMetric(float64(peak>>20), "MiB")
		})
	}
}

// BenchmarkOtherSession reports the time of small calls of one session while another one sends
// hostile calls of 64 MiB without end, and without it.
func BenchmarkOtherSession(b *testing.B) {
	for _, hostiles := range []int{0, 1, 4} {
		b.Run(map[int]string{0: "alone", 1: "beside one", 4: "beside four"}[hostiles], func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			var work sync.WaitGroup
			bodies := hostileBodies()
			for range hostiles {
				url, token := discarding(b)
				for _, body := range bodies {
					work.Go(func() {
						client := &http.Client{Transport: &http.Transport{}}
						defer client.CloseIdleConnections()
						for ctx.Err() == nil {
							send(ctx, client, url, token, body)
						}
					})
				}
			}
			url, token := discarding(b)
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			small := []byte(`{"messages":[{"role":"user","content":"hello"}]}`)
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if status := send(ctx, client, url, token, small); status != http.StatusOK {
					b.Fatal(status)
				}
				took = append(took, time.Since(began))
			}
			b.StopTimer()
			cancel()
			work.Wait()
			slices.Sort(took)
			for q, name := range map[int]string{50: "ms/p50", 99: "ms/p99", 100: "ms/max"} {
				b.ReportMetric(float64(took[min(len(took)*q/100, len(took)-1)].Microseconds())/1000, name)
			}
		})
	}
}
