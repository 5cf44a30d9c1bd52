package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// heldShape is a form of the calls of a model.
type heldShape struct {
	name, base, path, body string
	api                    runnerscripts.ModelAPI
	call, ended            string // what an answer with a call has, and one whose calls are all refused
}

// heldShapes are all forms; %q is the prompt.
func heldShapes() []heldShape {
	const (
		messages = `{"model":"m","max_tokens":100,"stream":%v,"messages":[{"role":"user","content":%%q}],"tools":[{"name":"Bash","input_schema":{"type":"object"}},{"name":"Write","input_schema":{"type":"object"}}]}`
		chats    = `{"model":"m","stream":%v,"messages":[{"role":"user","content":%%q}],"tools":[{"type":"function","function":{"name":"bash"}},{"type":"function","function":{"name":"write"}}]}`
		items    = `{"model":"m","stream":%v,"input":[{"type":"message","role":"user","content":%%q}],"tools":[{"type":"function","name":"exec_command"},{"type":"custom","name":"apply_patch"}]}`
		contents = `{"contents":[{"role":"user","parts":[{"text":%q}]}],"tools":[{"functionDeclarations":[{"name":"run_shell_command"},{"name":"write_file"}]}]}`
	)
	var all []heldShape
	for _, stream := range []bool{true, false} {
		of := func(name string) string { return fmt.Sprintf("%s, stream %v", name, stream) }
		generate := "generateContent"
		if stream {
			generate = "streamGenerateContent?alt=sse"
		}
		all = append(all,
			heldShape{of("anthropic"), "", "/v1/messages", fmt.Sprintf(messages, stream), runnerscripts.APIAnthropic, `"tool_use"`, `"end_turn"`},
			heldShape{of("chat"), "/v1", "/chat/completions", fmt.Sprintf(chats, stream), runnerscripts.APIOpenAI, `"tool_calls"`, `"stop"`},
			heldShape{of("responses"), "/v1", "/responses", fmt.Sprintf(items, stream), runnerscripts.APIOpenAI, `_call"`, `"completed"`},
			heldShape{of("gemini"), "", "/v1beta/models/m:" + generate, contents, runnerscripts.APIGemini, `"functionCall"`, `"STOP"`},
		)
	}
	return all
}

// A refused call does not reach the agent, in any API, and the model's text does.
func TestARefusedCallDoesNotReachTheAgent(t *testing.T) {
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	for _, c := range heldShapes() {
		t.Run(c.name, func(t *testing.T) {
			var judged []string
			g, at := serveConfig(t, Config{
				Upstreams: map[string]Upstream{"x": {API: c.api, URL: api.URL + c.base, Key: "a-key-of-the-test"}},
				Hold: func(_ context.Context, tool string, input json.RawMessage) string {
					judged = append(judged, tool+" "+string(input))
					if strings.Contains(string(input), "denied") || strings.Contains(string(input), "echo two") {
						return "The call was refused by a rule."
					}
					return ""
				},
			})
			ask := func(prompt string) string {
				t.Helper()
				judged = nil
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.URL+"/x"+c.path, strings.NewReader(fmt.Sprintf(c.body, prompt)))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+g.cfg.Token)
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				data, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: %s, %v", resp.Status, data, err)
				}
				return string(data)
			}
			allowed := ask("please run-command `touch here`")
			if !strings.Contains(allowed, c.call) || !strings.Contains(allowed, "touch here") || len(judged) != 1 || !strings.Contains(judged[0], "touch here") {
				t.Errorf("allowed: judged %q: %s", judged, allowed)
			}
			refused := ask("please run-command `touch denied`")
			said := strings.Contains(refused, "refused by a rule") && strings.Contains(refused, "tool.") && strings.Contains(refused, c.ended)
			if strings.Contains(refused, c.call) || strings.Contains(refused, "touch denied") || !said || len(judged) != 1 || !json.Valid([]byte(strings.SplitN(judged[0], " ", 2)[1])) {
				t.Errorf("refused: judged %q: %s", judged, refused)
			}
			// Of two calls the other one stays, and the answer ends as one with a call.
			both := ask("please two-tools")
			if !strings.Contains(both, c.call) || !strings.Contains(both, "two.txt") || strings.Contains(both, "echo two") || !strings.Contains(both, "refused by a rule") || len(judged) != 2 {
				t.Errorf("one of two: judged %q: %s", judged, both)
			}
			if c.api == runnerscripts.APIAnthropic && !strings.Contains(both, `"stop_reason":"tool_use"`) || strings.HasSuffix(c.path, "completions") && !strings.Contains(both, `"finish_reason":"tool_calls"`) {
				t.Errorf("one of two: it ends as if there were none: %s", both)
			}
			if plain := ask("please plain-text"); !strings.Contains(plain, "Hello") || len(judged) != 0 {
				t.Errorf("a text: judged %q: %s", judged, plain)
			}
		})
	}
}

// While a call waits, the text before it has come. What cannot be read does not pass.
func TestTextPassesWhileACallWaits(t *testing.T) {
	for _, c := range []struct{ name, media, text, rest string }{
		{
			"a call", "text/event-stream", "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"first\"}}\n\n",
			"data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"Bash\",\"input\":{}}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
		},
		{"no JSON", "text/event-stream", ": first\n\n", "data: {\"tool_use\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wait := make(chan struct{})
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.media)
				_, _ = io.WriteString(w, c.text)
				_ = http.NewResponseController(w).Flush()
				_, _ = io.WriteString(w, c.rest)
			}))
			t.Cleanup(upstream.Close)
			g, at := serveConfig(t, Config{
				Upstreams: map[string]Upstream{"x": {API: runnerscripts.APIAnthropic, URL: upstream.URL, Key: "a-key-of-the-test"}},
				Hold:      func(context.Context, string, json.RawMessage) string { <-wait; return "no" },
			})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.URL+"/x/v1/messages", strings.NewReader(`{"model":"m","messages":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+g.cfg.Token)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			first := make([]byte, len(c.text))
			if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != c.text {
				t.Fatalf("at first comes %q, %v", first, err)
			}
			close(wait)
			rest, err := io.ReadAll(resp.Body)
			if strings.Contains(string(rest), "tool_use") || (err == nil) != (c.name == "a call") {
				t.Errorf("then comes %q, %v", rest, err)
			}
		})
	}
}
