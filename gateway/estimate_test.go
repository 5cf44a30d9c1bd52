package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/gateway/internal/policy"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestCallsThatTellLittleCount has calls with which an agent could evade a budget. Each is
// counted with at least these tokens, or refused.
func TestCallsThatTellLittleCount(t *testing.T) {
	const (
		start  = `data: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":700,"output_tokens":1}}}` + "\n\n"
		gemini = `data: {"candidates":[],"usageMetadata":{"promptTokenCount":700,"candidatesTokenCount":1},"modelVersion":"m"}` + "\n\n"
		chat   = `data: {"model":"m","choices":[],"usage":{"prompt_tokens":700,"completion_tokens":9000}}` + "\n\ndata: [DONE]\n\n"
		prompt = 4000 // bytes
	)
	words := strings.Repeat(`data: {"type":"content_block_delta","delta":{"text":"some words"}}`+"\n\n", 1000)
	text := strings.Repeat("a", prompt)
	for _, c := range []struct {
		name      string
		path      string
		call      string
		answer    string // "" for none before the agent disconnects
		leave     bool   // the agent disconnects after the answer's bytes
		in, out   int64
		atMost    int64 // of the output; 0 for no bound
		forbidden string
	}{
		{name: "background", path: "/openai/responses", call: `{"background":true,"max_output_tokens":128000}`, forbidden: "background"},
		{name: "no answer", path: "/anthropic/v1/messages", call: `{"max_tokens":1000,"x":"` + text + `"}`, leave: true, in: prompt / 4},
		{name: "no answer, a stored conversation", path: "/openai/responses", call: `{"previous_response_id":"r"}`, leave: true, in: 50_000},
		{name: "a stream without usage", path: "/openai/chat/completions", call: `{"stream":true,"reasoning_effort":"high"}`, answer: chat, in: 700, out: 9000, atMost: 9000},
		{name: "a stream that is left", path: "/anthropic/v1/messages", call: `{"stream":true}`, answer: start + words, leave: true, in: 700, out: int64(len(words) / 16)},
		{name: "a stream that is left, with a small maximum", path: "/anthropic/v1/messages", call: `{"stream":true,"max_tokens":50}`, answer: start + words, leave: true, in: 700, out: 50, atMost: 50},
		{name: "a stream of Gemini that is left", path: "/gemini/v1beta/models/m:streamGenerateContent", call: `{}`, answer: gemini + words, leave: true, in: 700, out: int64(len(words) / 16)},
		{name: "an answer that says nothing", path: "/openai/responses", call: `{"x":"` + text + `"}`, answer: "data: " + text + "\n\n", in: prompt / 4, out: prompt / 16},
		{name: "an answer that is left", path: "/openai/responses", call: `{"x":"` + text + `"}`, answer: `{"output":"` + text, leave: true, in: prompt / 4, out: prompt / 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			arrived := make(chan struct{}, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if strings.Contains(string(body), "warm up") {
					_, _ = io.WriteString(w, `{"usage":{"input_tokens":50000,"output_tokens":0}}`)
					return
				}
				if strings.Contains(r.URL.Path, "chat") && !strings.Contains(string(body), `"stream_options":{"include_usage":true}`) {
					t.Errorf("the API got %s", body)
				}
				arrived <- struct{}{}
				if c.answer != "" {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, c.answer)
					_ = http.NewResponseController(w).Flush()
				}
				if c.leave {
					<-r.Context().Done()
				}
			}))
			defer server.Close()
			cfg := Config{Meter: NewMeter(Budget{Session: Limits{Tokens: 1e9}}, Used{}), Upstreams: map[string]Upstream{}}
			for _, api := range []runnerscripts.ModelAPI{runnerscripts.APIAnthropic, runnerscripts.APIOpenAI, runnerscripts.APIGemini} {
				cfg.Upstreams[string(api)] = Upstream{API: api, URL: server.URL, Key: realKey}
			}
			g, at := serveConfig(t, cfg)
			ask(t, request(t, "POST", at.URL+"/openai/responses", `{"x":"warm up"}`, "X-Api-Key", at.Token))
			before := cfg.Meter.Used()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req := request(t, "POST", at.URL+c.path, c.call, "X-Api-Key", at.Token).WithContext(ctx)
			if c.leave && c.answer == "" {
				go func() {
					<-arrived
					cancel()
				}()
			}
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err == nil {
				read := io.Reader(resp.Body)
				if c.leave {
					read = io.LimitReader(read, int64(len(c.answer)))
				}
				said, _ := io.ReadAll(read)
				cancel()
				_ = resp.Body.Close()
				if forbidden := resp.StatusCode == http.StatusForbidden; forbidden != (c.forbidden != "") || !strings.Contains(string(said), c.forbidden) {
					t.Errorf("%d %s", resp.StatusCode, said)
				}
			}
			waitIdle(g)
			used := cfg.Meter.Used()
			in, out := used.TotalInput()-before.TotalInput(), used.OutputTokens-before.OutputTokens
			if in < c.in || out < c.out || c.atMost > 0 && out > c.atMost {
				t.Errorf("%d tokens of input and %d of output are counted", in, out)
			}
		})
	}
}

// waitIdle returns when no request is passed on.
func waitIdle(g *Gateway) {
	for range maxRequests {
		g.slots <- struct{}{}
	}
	for range maxRequests {
		<-g.slots
	}
}

// TestOtherBudgetsChangeNoCall checks that only a budget that counts tokens changes and refuses
// calls.
func TestOtherBudgetsChangeNoCall(t *testing.T) {
	for _, body := range []string{`{"model":"m", "background":true}`, `{"stream": true}`} {
		got := make(chan string, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			data, _ := io.ReadAll(r.Body)
			got <- string(data)
		}))
		defer server.Close()
		cfg := Config{Meter: NewMeter(Budget{Session: Limits{Requests: 9}, Query: Limits{Time: time.Hour}}, Used{}), Upstreams: map[string]Upstream{"openai": {API: "openai", URL: server.URL, Key: realKey}}}
		_, at := serveConfig(t, cfg)
		if status, said := ask(t, request(t, "POST", at.URL+"/openai/chat/completions", body, "X-Api-Key", at.Token)); status != 200 || <-got != body {
			t.Errorf("%s: %d %s", body, status, said)
		}
	}
}

func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		call    modelCall
		told    runnerscripts.Usage
		text    int64
		seconds time.Duration
		in, out int64
	}{
		{modelCall{size: 400}, runnerscripts.Usage{}, 0, 0, 100, 0},
		{modelCall{size: 400}, runnerscripts.Usage{}, 0, 20, 100, 2000},
		{modelCall{size: 400}, runnerscripts.Usage{}, 3000, 20, 100, 3000},
		{modelCall{size: 400}, runnerscripts.Usage{InputTokens: 7, OutputTokens: 1}, 30, 20, 7, 2000},
		{modelCall{size: 400}, runnerscripts.Usage{CacheReadTokens: 7, OutputTokens: 5000}, 30, 20, 0, 5000},
		{modelCall{size: 400, Passed: policy.Passed{MaxOutput: 500}}, runnerscripts.Usage{}, 3000, 20, 100, 500},
		{modelCall{size: 400, Passed: policy.Passed{MaxOutput: 500, Answers: 3}}, runnerscripts.Usage{}, 0, 1, 100, 300},
		{modelCall{size: 400, Passed: policy.Passed{MaxOutput: 500, Answers: 3}}, runnerscripts.Usage{}, 0, 100, 100, 1500},
		{modelCall{size: 400, Passed: policy.Passed{Stored: true}}, runnerscripts.Usage{}, 0, 0, 9000, 0},
	} {
		c.call.Answers = max(1, c.call.Answers)
		u := meter.Usage{Usage: c.told}
		if c.call.estimate(&u, c.text, c.seconds*time.Second, 9000); u.InputTokens != c.in || u.OutputTokens != c.out {
			t.Error(fmt.Sprintf("%+v, %+v", c.call, c.told), u)
		}
	}
}
