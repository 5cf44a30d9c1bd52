package llmapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
)

// ask sends a request and returns the status and the body of the answer.
func ask(t *testing.T, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// histories has, for each API, a valid history and its mutants: each breaks one rule. A history is a
// list of messages, one a line, so that a mutant leaves out, repeats or changes lines.
var histories = []struct {
	api, path, field string
	valid            []string
	mutants          map[string]mutant
}{
	{
		"anthropic", "/v1/messages", "messages",
		[]string{
			`{"role":"user","content":"hi"}`,
			`{"role":"assistant","content":[{"type":"text","text":"I use tools."},{"type":"tool_use","id":"a"},{"type":"tool_use","id":"b"}]}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"b"},{"type":"tool_result","tool_use_id":"a"},{"type":"text","text":"go on"}]}`,
			`{"role":"system","content":"a notice"}`,
			`{"role":"user","content":"another text of the same turn"}`,
			`{"role":"assistant","content":"done"}`,
			`{"role":"user","content":"hi"}`,
		},
		map[string]mutant{
			"no messages":               {keep: []int{}, want: "at least one message is required"},
			"begins with the assistant": {keep: []int{5, 6}, want: "first message must use"},
			"an unknown role":           {change: map[int]string{6: `{"role":"tool","content":"x"}`}, want: "Input should be 'user' or 'assistant'"},
			"no result":                 {keep: []int{0, 1, 5, 6}, change: map[int]string{5: `{"role":"user","content":"hi"}`}, want: "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a, b"},
			"no result at the end":      {keep: []int{0, 1, 6}, want: "without `tool_result` blocks"},
			"one of two results": {
				change: map[int]string{2: `{"role":"user","content":[{"type":"tool_result","tool_use_id":"b"}]}`},
				want:   "immediately after: a.",
			},
			"a text before the results": {
				change: map[int]string{2: `{"role":"user","content":[{"type":"text","text":"x"},{"type":"tool_result","tool_use_id":"b"},{"type":"tool_result","tool_use_id":"a"}]}`},
				want:   "without `tool_result` blocks",
			},
			"two results":            {keep: []int{0, 1, 2, 2, 5, 6}, want: "Found multiple `tool_result` blocks with id: b"},
			"a result without calls": {keep: []int{0, 5, 2}, want: "unexpected `tool_use_id`"},
			"a late result":          {keep: []int{0, 1, 2, 5, 2}, want: "unexpected `tool_use_id`"},
			"one ID twice":           {keep: []int{0, 1, 2, 1, 2}, want: "ids must be unique"},
			"a call by the user":     {change: map[int]string{6: `{"role":"user","content":[{"type":"tool_use","id":"c"}]}`}, want: "can only be in `assistant`"},
			"a result by the assistant": {
				change: map[int]string{5: `{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"a"}]}`},
				want:   "can only be in `user`",
			},
		},
	},
	{
		"chat", "/v1/chat/completions", "messages",
		[]string{
			`{"role":"system","content":"be kind"}`,
			`{"role":"user","content":"hi"}`,
			`{"role":"assistant","content":null,"tool_calls":[{"id":"a"},{"id":"b"}]}`,
			`{"role":"tool","tool_call_id":"b","content":"ok"}`,
			`{"role":"tool","tool_call_id":"a","content":"ok"}`,
			`{"role":"assistant","content":"done"}`,
			`{"role":"user","content":"hi"}`,
		},
		map[string]mutant{
			"an unknown role":         {change: map[int]string{6: `{"role":"model","content":"x"}`}, want: "Invalid value: 'model'"},
			"no result":               {keep: []int{0, 1, 2, 6}, want: "did not have response messages: a, b"},
			"one of two results":      {keep: []int{0, 1, 2, 3, 5, 6}, want: "did not have response messages: a"},
			"no result at the end":    {keep: []int{0, 1, 2}, want: "did not have response messages: a, b"},
			"two results":             {keep: []int{0, 1, 2, 3, 4, 3, 6}, want: "Duplicate value for 'tool_call_id' of 'b', in messages[3] and messages[5]."},
			"a result without calls":  {keep: []int{0, 1, 3, 6}, want: "must be a response to a preceding message"},
			"a late result":           {keep: []int{0, 1, 2, 3, 4, 6, 4}, want: "must be a response to a preceding message"},
			"a result of other calls": {change: map[int]string{3: `{"role":"tool","tool_call_id":"c","content":"x"}`}, want: "'tool_call_id' of 'c' not found"},
		},
	},
	{
		"responses", "/v1/responses", "input",
		[]string{
			`{"type":"message","role":"user","content":"hi"}`,
			`{"type":"function_call","id":"fc_1","call_id":"a","name":"x","arguments":"{}"}`,
			`{"type":"custom_tool_call","id":"ctc_1","call_id":"b","name":"y","input":""}`,
			`{"type":"custom_tool_call_output","call_id":"b","output":"ok"}`,
			`{"type":"message","role":"developer","content":"a notice"}`,
			`{"type":"function_call_output","call_id":"a","output":"ok"}`,
			`{"type":"message","role":"user","content":"hi"}`,
		},
		map[string]mutant{
			"an unknown role":        {change: map[int]string{6: `{"role":"tool","content":"x"}`}, want: "Invalid value: 'tool'"},
			"no output":              {keep: []int{0, 1, 2, 3, 6}, want: "No tool output found for function call a."},
			"no output of another":   {keep: []int{0, 1, 2, 5, 6}, want: "No tool output found for custom tool call b."},
			"two outputs":            {keep: []int{0, 1, 2, 3, 5, 5}, want: "Duplicate function_call_output for call_id 'a'"},
			"an output without call": {keep: []int{0, 2, 3, 5}, want: "No tool call found for function call output with call_id a."},
			"an output before":       {keep: []int{0, 5, 1, 2, 3}, want: "No tool call found for function call output"},
			"an output of another kind": {
				change: map[int]string{5: `{"type":"custom_tool_call_output","call_id":"a","output":"ok"}`},
				want:   "No tool call found for custom tool call output with call_id a.",
			},
			"one item twice": {keep: []int{0, 1, 1, 5}, want: "Duplicate item found with id fc_1."},
		},
	},
	{
		"gemini", "/v1beta/models/m:generateContent", "contents",
		[]string{
			`{"role":"user","parts":[{"text":"hi"}]}`,
			`{"role":"model","parts":[{"text":"I use tools."},{"functionCall":{"name":"x","args":{}}},{"functionCall":{"name":"y","args":{}}}]}`,
			`{"role":"user","parts":[{"functionResponse":{"name":"x","response":{}}},{"functionResponse":{"name":"y","response":{}}}]}`,
			`{"role":"model","parts":[{"functionCall":{"name":"x","args":{}}}]}`,
			`{"role":"user","parts":[{"functionResponse":{"name":"x","response":{}}},{"text":"and a text"}]}`,
			`{"role":"model","parts":[{"text":"done"}]}`,
			`{"role":"user","parts":[{"text":"hi"}]}`,
			`{"parts":[{"text":"another text"}]}`,
		},
		map[string]mutant{
			"no contents":               {keep: []int{}, want: "contents is not specified"},
			"no parts":                  {change: map[int]string{5: `{"role":"model","parts":[]}`}, want: "contents[5].parts: contents.parts must not be empty"},
			"an unknown role":           {change: map[int]string{5: `{"role":"assistant","parts":[{"text":"x"}]}`}, want: "valid role"},
			"no response":               {keep: []int{0, 1, 6}, want: "number of function response parts is equal"},
			"a response too many":       {keep: []int{0, 3, 2}, want: "number of function response parts is equal"},
			"a response too few":        {keep: []int{0, 1, 4}, want: "number of function response parts is equal"},
			"the responses twice":       {keep: []int{0, 1, 2, 2}, want: "function response turn comes immediately after a function call turn"},
			"a response without a call": {keep: []int{0, 5, 4}, want: "function response turn comes immediately after a function call turn"},
			"a late response":           {keep: []int{0, 1, 2, 6, 4}, want: "function response turn comes immediately after a function call turn"},
			"begins with a call":        {keep: []int{1, 2}, want: "function call turn comes immediately after a user turn"},
			"a call after the model":    {keep: []int{0, 5, 3, 4}, want: "function call turn comes immediately after a user turn"},
		},
	},
}

// mutant is a broken history: the lines with the indexes keep (nil means all), some of them changed.
type mutant struct {
	keep   []int
	change map[int]string
	want   string // part of the vendor's error
}

func (m mutant) of(lines []string) []string {
	var list []string
	if m.keep == nil {
		for i := range lines {
			m.keep = append(m.keep, i)
		}
	}
	for _, i := range m.keep {
		line := lines[i]
		if c, ok := m.change[i]; ok {
			line = c
		}
		list = append(list, line)
	}
	return list
}

func TestHistoriesThatAVendorRefuses(t *testing.T) {
	t.Parallel()
	for _, h := range histories {
		h.mutants["valid"] = mutant{}
		for name, m := range h.mutants {
			t.Run(h.api+"/"+name, func(t *testing.T) {
				t.Parallel()
				s, err := llmapi.Start(t.Context(), llmapi.Config{})
				if err != nil {
					t.Fatal(err)
				}
				status, body := ask(t, s.URL+h.path, `{"model":"m","`+h.field+`":[`+strings.Join(m.of(h.valid), ",")+"]}")
				recorded := s.Requests()[0].Status
				err = s.Close()
				if m.want == "" {
					if status != http.StatusOK || recorded != status || err != nil {
						t.Errorf("the valid history: %d, recorded %d, %s, closed with %v", status, recorded, body, err)
					}
					return
				}
				said := message400(t, body)
				if status != http.StatusBadRequest || recorded != status || !strings.Contains(said, m.want) {
					t.Errorf("answer %d, recorded %d, %q; want %q", status, recorded, said, m.want)
				}
				if err == nil || !strings.Contains(err.Error(), m.want) {
					t.Errorf("Close returned %v", err)
				}
			})
		}
	}
}

// message400 returns the message of an error.
func message400(t *testing.T, body string) string {
	t.Helper()
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return e.Error.Message
}
