package hold

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// filtered returns an answer without the calls that have "no" in their input.
func filtered(t *testing.T, api runnerscripts.ModelAPI, path, mediaType, body string) (string, error) {
	t.Helper()
	a := Answer(api, path, mediaType, io.NopCloser(strings.NewReader(body)), func(_ string, input json.RawMessage) string {
		if strings.Contains(string(input), "no") {
			return "REFUSED"
		}
		return ""
	})
	data, err := io.ReadAll(a)
	if cerr := a.Close(); cerr != nil {
		t.Error(cerr)
	}
	return string(data), err
}

func TestFormsOfCalls(t *testing.T) {
	const sse = "text/event-stream"
	for name, c := range map[string]struct {
		api              runnerscripts.ModelAPI
		path, media      string
		body, has, lacks string
		fails            bool
	}{
		"the function of the old chat": {
			runnerscripts.APIOpenAI, "/chat/completions", "application/json",
			`{"choices":[{"message":{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}}]}`, "obsolete", "arguments", false,
		},
		"the function of the old chat, streamed": {
			runnerscripts.APIOpenAI, "/chat/completions", sse,
			"data: {\"choices\":[{\"index\":0,\"delta\":{\"function_call\":{\"name\":\"f\",\"arguments\":\"{\"}}}]}\n\ndata: [DONE]\n\n", "obsolete", "arguments", false,
		},
		"a custom tool": {
			runnerscripts.APIOpenAI, "/chat/completions", "",
			`{"choices":[{"message":{"tool_calls":[{"custom":{"name":"f","input":"no"}},{"custom":{"name":"g","input":"yes"}}]}}]}`, `"yes"`, `"no"`, false,
		},
		"two choices": {
			runnerscripts.APIOpenAI, "/chat/completions", sse,
			"data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"n\"}}]}},{\"index\":1,\"delta\":{\"content\":\"hello\"}}]}\n\n" +
				"data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"o\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n", "hello", "arguments", false,
		},
		"a call that the stream has only at its end": {
			runnerscripts.APIOpenAI, "/responses", sse,
			"data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"function_call\",\"id\":\"1\",\"name\":\"f\",\"arguments\":\"no\"}]}}\n\n", "REFUSED", "function_call", false,
		},
		"the shell of the vendor":                 {runnerscripts.APIOpenAI, "/responses", "", `{"output":[{"type":"local_shell_call","action":{"command":["no"]}}]}`, "REFUSED", "local_shell", false},
		"a list of answers":                       {runnerscripts.APIGemini, "/x", "application/json", `[{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"no"}}}]}}]}]`, "REFUSED", "functionCall", false},
		"an input at the start of a block":        {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{\"a\":\"no\"}}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n", "REFUSED", "tool_use", false},
		"a call that does not end":                {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}}\n\n", "", "tool_use", false},
		"an event without its blank line":         {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"type\":\"ping\"}", "ping", "tool_use", false},
		"numbers and unknown fields":              {runnerscripts.APIAnthropic, "/v1/messages", sse, "id: 7\r\ndata: {\"type\":\"new\",  \"n\": 12345678901234567890}\r\n\r\n", "id: 7\r\ndata: {\"type\":\"new\",  \"n\": 12345678901234567890}\r\n\r\n", "tool_use", false},
		"an answer that is no JSON":               {runnerscripts.APIAnthropic, "/v1/messages", "", `{"content":[{"type":"tool_use"`, "", "tool_use", true},
		"an answer that is larger than the limit": {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"tool_use\":\"" + strings.Repeat("x", maxAnswer) + "\"}\n\n", "", "tool_use", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := filtered(t, c.api, c.path, c.media, c.body)
			if (err != nil) != c.fails || !strings.Contains(got, c.has) || strings.Contains(got, c.lacks) {
				t.Errorf("the agent gets %.2000s, %v", got, err)
			}
		})
	}
}

// An agent that leaves ends the reading.
func TestAReaderThatLeaves(t *testing.T) {
	closed := make(chan struct{})
	body, model := io.Pipe()
	a := Answer(runnerscripts.APIGemini, "/x", "text/event-stream", closer{body, closed}, func(string, json.RawMessage) string { return "" })
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	<-closed
	if _, err := model.Write([]byte("data: {}\n\n")); err == nil {
		t.Error("the answer of the model is still read")
	}
}

type closer struct {
	*io.PipeReader
	closed chan struct{}
}

func (c closer) Close() error {
	defer close(c.closed)
	return c.PipeReader.Close()
}
