package hold

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

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

// chunks is a stream of a chat whose tool calls come in pieces.
func chunks(pieces ...string) string {
	var b strings.Builder
	for _, p := range pieces {
		b.WriteString(`data: {"choices":[{"index":0,"delta":{"tool_calls":[` + p + "]}}]}\n\n")
	}
	return b.String() + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n"
}

// Pieces that may belong to several calls are refused: joined they would be a call that no rule knows.
func TestCallsThatCannotBeToldApart(t *testing.T) {
	const a, b = `"id":"1","function":{"name":"f","arguments":"{}"}}`, `"id":"2","function":{"name":"f","arguments":"{}"}}`
	for name, c := range map[string]struct {
		body   string
		passes bool
	}{
		"two indexes":            {chunks(`{"index":0,`+a, `{"index":1,`+b), true},
		"an ID that is repeated": {chunks(`{"index":0,`+a, `{"index":0,"id":"1","function":{"name":"","arguments":" "}}`), true},
		"no index":               {chunks(`{` + a), false},
		"one that is no index":   {chunks(`{"index":0.0,` + a), false},
		"no index twice":         {chunks(`{`+a, `{`+b), false},
		"a second ID":            {chunks(`{"index":0,`+a, `{"index":0,"id":"2","function":{"arguments":"{}"}}`), false},
		"a second name":          {chunks(`{"index":0,`+a, `{"index":0,"function":{"name":"f","arguments":""}}`), false},
		"two of one event":       {chunks(`{"index":0,` + a + `,{"index":0,` + b), false},
	} {
		got, err := filtered(t, runnerscripts.APIOpenAI, "/chat/completions", "text/event-stream", c.body)
		if err != nil || strings.Contains(got, `"arguments"`) != c.passes || strings.Contains(got, "cannot be judged") == c.passes {
			t.Errorf("%s: the agent gets %s, %v", name, got, err)
		}
	}
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
		"an input that is no text": {
			runnerscripts.APIOpenAI, "/chat/completions", "", `{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":"no"}}}]}}]}`, "REFUSED", "arguments", false,
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
		"the shell of the vendor": {runnerscripts.APIOpenAI, "/responses", "", `{"output":[{"type":"local_shell_call","action":{"command":["no"]}}]}`, "REFUSED", "local_shell", false},
		"two calls with an ID": {
			runnerscripts.APIOpenAI, "/responses", sse,
			"data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"function_call\",\"id\":\"1\",\"name\":\"f\",\"arguments\":\"yes\"}}\n\n" +
				"data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"function_call\",\"id\":\"1\",\"name\":\"f\",\"arguments\":\"no\"}]}}\n\n", "REFUSED", `"no"`, false,
		},
		"a call at the start of a message": {
			runnerscripts.APIAnthropic, "/v1/messages", sse,
			"data: {\"type\":\"message_start\",\"message\":{\"content\":[{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{\"a\":\"no\"}}]}}\n\n", "REFUSED", "tool_use", false,
		},
		"a call that goes on behind its end": {
			runnerscripts.APIAnthropic, "/v1/messages", sse,
			"data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
				"data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":\\\"no\\\"}\"}}\n\n", "tool_use", "no", true,
		},
		"a byte order mark":                         {runnerscripts.APIGemini, "/x", sse, "\ufeffdata: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{\"name\":\"f\",\"args\":{\"a\":\"no\"}}}]}}]}\n\n", "", "functionCall", true},
		"a list of answers":                         {runnerscripts.APIGemini, "/x", "application/json", `[{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"no"}}}]}}]}]`, "REFUSED", "functionCall", false},
		"an input at the start of a block":          {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{\"a\":\"no\"}}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n", "REFUSED", "tool_use", false},
		"a call that does not end":                  {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}}\n\n", "", "tool_use", false},
		"an event without its blank line":           {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"type\":\"ping\"}", "ping", "tool_use", false},
		"a call without its last line break":        {runnerscripts.APIGemini, "/x", sse, `data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"no"}}}]}}]}`, "REFUSED", "functionCall", false},
		"a call behind an event that has not ended": {runnerscripts.APIGemini, "/x", sse, "event: x\n" + `data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"no"}}}]}}]}`, "REFUSED", "functionCall", false},
		"lines that end with a carriage return":     {runnerscripts.APIGemini, "/x", sse, "event: x\rdata: {\"tool_use\":1}\r\r\n", "", "tool_use", true},
		"two objects":                               {runnerscripts.APIGemini, "/x", sse, "data: {} {\"tool_use\":1}\n\n", "", "tool_use", true},
		"numbers and unknown fields":                {runnerscripts.APIAnthropic, "/v1/messages", sse, "id: 7\r\ndata: {\"type\":\"new\",  \"n\": 12345678901234567890}\r\n\r\n", "id: 7\r\ndata: {\"type\":\"new\",  \"n\": 12345678901234567890}\r\n\r\n", "tool_use", false},
		"an answer that is no JSON":                 {runnerscripts.APIAnthropic, "/v1/messages", "", `{"content":[{"type":"tool_use"`, "", "tool_use", true},
		"an answer that is larger than the limit":   {runnerscripts.APIAnthropic, "/v1/messages", sse, "data: {\"tool_use\":\"" + strings.Repeat("x", maxAnswer) + "\"}\n\n", "", "tool_use", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := filtered(t, c.api, c.path, c.media, c.body)
			if (err != nil) != c.fails || !strings.Contains(got, c.has) || strings.Contains(got, c.lacks) {
				t.Errorf("the agent gets %.2000s, %v", got, err)
			}
		})
	}
}

// What came before a connection broke is not sent, unless it is a whole event.
func TestAStreamThatBreaks(t *testing.T) {
	body := io.MultiReader(strings.NewReader("data: {\"n\":1}\n\ndata: {\"candidates\":[]}\ndata: "), iotest.ErrReader(io.ErrUnexpectedEOF))
	a := Answer(runnerscripts.APIGemini, "/x", "text/event-stream", io.NopCloser(body), func(string, json.RawMessage) string { return "" })
	defer a.Close()
	if got, err := io.ReadAll(a); string(got) != "data: {\"n\":1}\n\n" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the agent gets %q, %v", got, err)
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
