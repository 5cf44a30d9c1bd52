package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

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
