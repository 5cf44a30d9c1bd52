package meter_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestMain(m *testing.M) { testleak.Main(m) }

func TestTheUsageIsThatOfTheScriptedAPIs(t *testing.T) {
	t.Parallel()
	s, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	const (
		messages    = `{"model":"m","messages":[{"role":"user","content":"WORD"}]}`
		responses   = `{"model":"m","input":[{"type":"message","role":"user","content":"WORD"}]}`
		generate    = `{"contents":[{"role":"user","parts":[{"text":"WORD"}]}]}`
		streamed    = `{"stream":true,"stream_options":{"include_usage":true},`
		generateURL = "/v1beta/models/m:"
	)
	for _, c := range []struct {
		api        runnerscripts.ModelAPI
		path, body string
		model      string
	}{
		{anthropic, "/v1/messages", messages, "m"},
		{anthropic, "/v1/messages", strings.Replace(messages, "{", streamed, 1), "m"},
		{openai, "/v1/chat/completions", messages, "m"},
		{openai, "/v1/chat/completions", strings.Replace(messages, "{", streamed, 1), "m"},
		{openai, "/v1/responses", responses, "m"},
		{openai, "/v1/responses", strings.Replace(responses, "{", streamed, 1), "m"},
		{gemini, generateURL + "generateContent", generate, "scripted"},
		{gemini, generateURL + "streamGenerateContent?alt=sse", generate, "scripted"},
	} {
		for _, word := range []string{"plain-text", "think"} {
			body := strings.Replace(c.body, "WORD", word, 1)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+c.path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			var got meter.Usage
			var exact bool
			w := meter.Watch(c.api, resp, func(u meter.Usage, e bool) { got, exact = u, e })
			if _, err := io.Copy(io.Discard, w); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			all := s.Requests()
			u := all[len(all)-1].Usage
			if want := usage(c.model, u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens); got != want || !exact || u.OutputTokens == 0 {
				t.Errorf("%s %s: %+v, %v; want %+v", c.path, body, got, exact, want)
			}
		}
	}
}
