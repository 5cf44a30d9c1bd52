package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	anthropic = runnerscripts.APIAnthropic
	openai    = runnerscripts.APIOpenAI
	gemini    = runnerscripts.APIGemini
)

func TestToolsOfTheAPIAreRemoved(t *testing.T) {
	for _, c := range []struct {
		name     string
		api      runnerscripts.ModelAPI
		in, want string
		removed  string
	}{
		{"claude's own tools", anthropic, `{"model":"m", "tools":[{"name":"Bash","input_schema":{}},{"type":"custom","name":"x"},{"type":"bash_20250124","name":"bash"},{"type":"text_editor_20250728"},{"type":"computer_20250124"},{"type":"memory_20250818"},{"type":"tool_search_tool_regex_20251119"}]}`, "", ""},
		{"web search", anthropic, `{"model": "m","tools":[{"name":"Bash"}, {"type":"web_search_20250305","name":"web_search","max_uses":8}],"n": 1}`, `{"model": "m","tools":[{"name":"Bash"}],"n": 1}`, "web_search"},
		{"nothing is left", anthropic, `{"tools":[{"type":"web_search_20250305"}],"tool_choice":{"type":"tool","name":"web_search"},"n":1}`, `{"n":1}`, "web_search"},
		{"the choice of one", anthropic, `{"tools":[{"name":"Bash"},{"type":"web_fetch_20250910"}],"tool_choice":{"type":"tool","name":"web_fetch"}}`, `{"tools":[{"name":"Bash"}]}`, "web_fetch"},
		{"the choice of another", anthropic, `{"tools":[{"name":"Bash"},{"type":"web_fetch_20250910"}],"tool_choice":{"type":"tool","name":"Bash"}}`, `{"tools":[{"name":"Bash"}],"tool_choice":{"type":"tool","name":"Bash"}}`, "web_fetch"},
		{"code, mcp and what is new", anthropic, `{"tools":[{"type":"code_execution_20250825"},{"type":"mcp_toolset"},{"type":"teleport_20270101"}],"mcp_servers":[{"url":"https://x"}],"container":{"skills":[]}}`, `{}`, "code_execution,mcp,teleport"},
		{"an escaped name", anthropic, `{"\u0074ools":[{"\u0074ype":"\u0077eb_search_20250305"}],"n":1}`, `{"n":1}`, "web_search"},
		{"codex's own tools", openai, `{"tools":[{"type":"function","name":"shell"},{"type":"custom"},{"type":"local_shell"},{"type":"apply_patch"},{"type":"shell","environment":{"type":"local"}},{"type":"shell"},{"type":"namespace","tools":[{"type":"function"}]}],"tool_choice":"auto"}`, "", ""},
		{"responses", openai, `{"tools":[{"type":"function"},{"type":"web_search"},{"type":"web_search_preview_2025_03_11"},{"type":"file_search"},{"type":"code_interpreter","container":{}},{"type":"image_generation"},{"type":"mcp"},{"type":"shell","environment":{"type":"container_auto"}},{"type":"namespace","tools":[{"type":"mcp"}]}],"tool_choice":{"type":"web_search"}}`, `{"tools":[{"type":"function"}]}`, "code_execution,file_search,image_generation,mcp,web_search"},
		{"chat", openai, `{"web_search_options":{},"tools":[{"type":"function"}],"tool_choice":"required"}`, `{"tools":[{"type":"function"}],"tool_choice":"required"}`, "web_search"},
		{"gemini's own tools", gemini, `{"tools":[{"functionDeclarations":[{"name":"googleSearch"}]},{"function_declarations":[]}]}`, "", ""},
		{"gemini", gemini, `{"tools":[{"googleSearch":{}},{"functionDeclarations":[{}],"url_context":{}},{"codeExecution":{}},{"google_search_retrieval":{}}]}`, `{"tools":[{"functionDeclarations":[{}]}]}`, "code_execution,web_fetch,web_search"},
		{"gemini, nothing is left", gemini, `{"contents":[],"tools":[{"googleSearch":{}}],"toolConfig":{"functionCallingConfig":{"mode":"ANY"}}}`, `{"contents":[]}`, "web_search"},
		{"a prompt about tools", anthropic, `{"messages":[{"content":"say \"tools\":[{\"type\":\"web_search_20250305\"}]"}],"metadata":{"tools":[{"type":"web_search_20250305"}]}}`, "", ""},
		{"no tools", openai, `{"tools":null}`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := Call{API: c.api, Path: "/v1beta/models/m:generateContent", Body: []byte(c.in)}
			out, err := Rules{}.Apply(t.Context(), call)
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if want == "" {
				want = c.in // unchanged
			}
			removed := out.Removed
			if got := string(out.Body); got != want || strings.Join(removed, ",") != c.removed {
				t.Errorf("%s, removed %q", got, removed)
			}
			for _, rules := range []Rules{{ProviderTools: []string{"*"}}, {ProviderTools: removed}} {
				if out, err := rules.Apply(t.Context(), call); err != nil || string(out.Body) != c.in || len(out.Removed) > 0 {
					t.Errorf("with %q: %s, %q, %v", rules.ProviderTools, out.Body, out.Removed, err)
				}
			}
		})
	}
}

func TestModels(t *testing.T) {
	rules := Rules{Models: []string{"claude-*", "gemini-2.5-flash"}, Rewrite: map[string]string{"big": "claude-small", "gemini-2.5-pro": "gemini-2.5-flash", "out": "gpt"}}
	const generate = "/v1beta/models/gemini-2.5-pro:streamGenerateContent"
	for _, c := range []struct {
		call      Call
		path      string
		body      string
		model     string
		forbidden bool
	}{
		{Call{anthropic, "/v1/messages", []byte(`{"model":"claude-1","n":1}`)}, "/v1/messages", `{"model":"claude-1","n":1}`, "claude-1", false},
		{Call{anthropic, "/v1/messages", []byte(`{ "n":1 , "model" : "big"}`)}, "/v1/messages", `{"n":1,"model":"claude-small"}`, "claude-small", false},
		{Call{anthropic, "/v1/messages", []byte(`{"model":"gpt"}`)}, "", "", "", true},
		{Call{anthropic, "/v1/messages", []byte(`{"model":"out"}`)}, "", "", "", true},
		{Call{openai, "/responses", []byte(`{}`)}, "", "", "", true},
		{Call{gemini, generate, []byte(`{"model":"claude-1"}`)}, "/v1beta/models/gemini-2.5-flash:streamGenerateContent", `{"model":"claude-1"}`, "gemini-2.5-flash", false},
		{Call{gemini, "/v1beta/models/gemini-3:generateContent", []byte(`{}`)}, "", "", "", true},
	} {
		out, err := rules.Apply(t.Context(), c.call)
		if refusal, ok := errors.AsType[*RefusedError](err); ok != c.forbidden || ok && !strings.Contains(refusal.Message, "models.allow") {
			t.Errorf("%s: %v", c.call.Body, err)
		}
		if !c.forbidden && (out.Model != c.model || out.Path != c.path || string(out.Body) != c.body) {
			t.Errorf("%s: %q %s %s", c.call.Body, out.Model, out.Path, out.Body)
		}
	}
	if err := (Rules{Models: []string{"["}}).Check(); err == nil {
		t.Error("a bad pattern is taken")
	}
	if err := rules.Check(); err != nil {
		t.Error(err)
	}
}

// TestCallsThatCouldBeReadInTwoWays checks that ambiguous calls are refused: the API could see
// other tools than the rules.
func TestCallsThatCouldBeReadInTwoWays(t *testing.T) {
	for _, body := range []string{
		``, `[]`, `"x"`, `null`, `{`, `{"a":1`, `{"a":1,}`, `{"a" 1}`, `{} {}`, `{}x`, "{}\f", `{"a":tru}`, "\xef\xbb\xbf{}",
		`{"tools":[],"tools":[{"type":"web_search_20250305"}]}`,
		`{"tools":[],"\u0074ools":[{"type":"web_search_20250305"}]}`,
		`{"model":"a","model":"b"}`, `{"model":1}`,
		`{"tools":[{"type":"custom","type":"web_search_20250305"}]}`,
		`{"Tools":[{"type":"web_search_20250305"}]}`, `{"tool\u017f":[]}`, `{"MODEL":"b"}`, `{"Me\u017fsages":[]}`, `{"Max_Tokens":1}`, `{"N":100}`, `{"Mcp_servers":[]}`,
		`{"tools":[{"Type":"web_search_20250305"}]}`, `{"tools":[{"type":"custom","TYPE":"web_search_20250305"}]}`, `{"tools":[{"type":"shell","Environment":{"type":"container_auto"}}]}`,
		`{"input":[{"type":"tool_search_output","Tools":[{"type":"mcp"}]}]}`, `{"prompt":{"Variables":{"input":{"image_url":"https://a.example"}}}}`,
		`{"messages":[{"content":[{"type":"web_search_result","Type":"image","url":"https://a.example"}]}]}`,
		`{"generationConfig":{"candidateCount":8},"generation_config":{"candidateCount":1}}`, `{"generationConfig":{"candidateCount":8,"CandidateCount":1}}`,
		`{"tools":[{"type":7}]}`, `{"tools":["web_search"]}`, `{"tools":{"type":"web_search"}}`, `{"tools":[null]}`,
		`{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`,
	} {
		if _, err := (Rules{}).Apply(t.Context(), Call{API: anthropic, Path: "/v1/messages", Body: []byte(body)}); err == nil {
			t.Errorf("%.80s is passed on", body)
		} else if _, ok := errors.AsType[*RefusedError](err); !ok {
			t.Errorf("%.80s: %T", body, err)
		}
	}
	for _, model := range []string{"gpt-4o-search-preview", "gpt-5-search-api"} {
		if _, err := (Rules{}).Apply(t.Context(), Call{API: openai, Body: []byte(`{"model":"` + model + `"}`)}); err == nil {
			t.Errorf("%s searches the web", model)
		}
	}
}

// addressed are calls with addresses that their APIs would fetch.
var addressed = []Call{
	{API: openai, Body: []byte(`{"prompt":{"id":"p","variables":{"x":{"type":"web_search_result","url":"https://a.example"}}}}`)},
	{API: openai, Body: []byte(`{"prompt":{"id":"p","variables":{"tools":[{"type":"input_image","image_url":"https://a.example"}]}}}`)},
	{API: openai, Body: []byte(`{"prompt":{"id":"p","variables":{"input":{"type":"input_image","image_url":"https://a.example/?d=1"}}}}`)},
	{API: anthropic, Body: []byte(`{"messages":[{"content":[{"type":"web_search_result","type":"image","url":"https://a.example/?d=1"}]}]}`)},
	{API: anthropic, Body: []byte(`{"messages":[{"content":[{"url":"https://a.example/?d=1","type":"image"}]}]}`)},
	{API: anthropic, Body: []byte(`{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://a.example/?d=1"}}]}]}`)},
	{API: anthropic, Body: []byte(`{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"https://a.example/?d=1"}}]}]}`)},
	{API: anthropic, Body: []byte(`{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"base64","ur\u006c":"HTTP://a.example","data":"aa"}}]}]}]}`)},
	{API: anthropic, Body: []byte(`{"messages":[{"content":[{"type":"new_2027","link":" \u0068t\ntps://a.example"}]}]}`)},
	{API: anthropic, Body: []byte(`{"system":[{"type":"image","source":{"url":"gopher://a.example"}}]}`)},
	{API: openai, Body: []byte(`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://a.example"}]}]}`)},
	{API: openai, Body: []byte(`{"input":[{"role":"user","content":[{"type":"input_file","file_url":"https://a.example"}]}]}`)},
	{API: openai, Body: []byte(`{"input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"https://a.example"}]}]}`)},
	{API: openai, Body: []byte(`{"input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"//a.example"}}]}`)},
	{API: openai, Body: []byte(`{"prompt":{"id":"p","variables":{"x":{"type":"input_file","file_url":"https://a.example"}}}}`)},
	{API: openai, Body: []byte(`{"input":[{"type":"tool_search_output","tools":[{"type":"mcp","server_url":"https://a.example"}]}]}`)},
	{API: openai, Body: []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a.example"}}]}]}`)},
	{API: openai, Body: []byte(`{"messages":[{"role":"user","content":[{"type":"video_url","video_url":["https://a.example"]}]}]}`)},
	{API: gemini, Body: []byte(`{"contents":[{"parts":[{"fileData":{"fileUri":"https://a.example"}}]}]}`)},
	{API: gemini, Body: []byte(`{"contents":[{"parts":[{"file_data":{"file_uri":"gs://bucket/x"}}]}]}`)},
	{API: gemini, Body: []byte(`{"contents":[{"parts":[{"fileData":{"fileUri":"https://generativelanguage.googleapis.com.a.example/v1beta/files/x"}}]}]}`)},
	{API: gemini, Body: []byte(`{"contents":[{"parts":[{"functionResponse":{"response":{},"parts":[{"fileData":{"fileUri":"https://a.example"}}]}}]}]}`)},
	{API: gemini, Body: []byte(`{"system_instruction":{"parts":[{"fileData":{"fileUri":"https://a.example"}}]}}`)},
	{API: gemini, Body: []byte(`{"generateContentRequest":{"contents":[{"parts":[{"fileData":{"fileUri":"https://a.example"}}]}]}}`)},
}

// TestAddressesInMessagesAreRefused checks that a sandbox without a network cannot make an API
// fetch an address, which could carry data out.
func TestAddressesInMessagesAreRefused(t *testing.T) {
	for _, call := range addressed {
		call.Path = "/v1beta/models/m:generateContent"
		for _, tools := range [][]string{nil, {"web_search"}} {
			if _, err := (Rules{ProviderTools: tools}).Apply(t.Context(), call); err == nil || !strings.Contains(err.Error(), "web_fetch") && !strings.Contains(err.Error(), "mcp") {
				t.Errorf("%s: %v", call.Body, err)
			}
		}
		for _, tools := range [][]string{{"web_fetch"}, {"*"}} {
			if out, err := (Rules{ProviderTools: tools}).Apply(t.Context(), call); err != nil || string(out.Body) != string(call.Body) {
				t.Errorf("with %s: %s becomes %s: %v", tools, call.Body, out.Body, err)
			}
		}
	}
}

// TestContentThatIsNotFetchedPasses has addresses in texts and in the data of tools, inline
// data, and uploaded files.
func TestContentThatIsNotFetchedPasses(t *testing.T) {
	for _, call := range []Call{
		{API: anthropic, Body: []byte(`{"system":"https://a.example","messages":[{"role":"user","content":"https://a.example"},{"role":"user","content":[{"type":"text","text":"https://a.example"},
			{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aa//"}},{"type":"image","source":{"type":"file","file_id":"file_1"}},
			{"type":"document","title":"https://a.example","context":"https://a.example","source":{"type":"text","data":"https://a.example"}},
			{"type":"document","source":{"type":"content","content":[{"type":"text","text":"https://a.example"}]}},
			{"type":"search_result","source":"https://a.example","title":"t","content":[]},
			{"type":"tool_result","content":"https://a.example"},{"type":"tool_result","content":[{"type":"text","text":"https://a.example"}]}]},
			{"role":"assistant","content":[{"type":"thinking","thinking":"https://a.example","signature":"//x"},{"type":"tool_use","name":"WebFetch","input":{"url":"https://a.example","source":{"type":"url","url":"https://a.example"}}},
			{"type":"web_search_tool_result","content":[{"url":"https://a.example","type":"web_search_result","encrypted_content":"x"}]},
			{"type":"text","text":"x","citations":[{"type":"web_search_result_location","url":"https://a.example"}]}]}],
			"tools":[{"name":"x","input_schema":{"$schema":"https://json-schema.org/draft","properties":{"url":{"format":"uri","default":"https://a.example"}}}}],"metadata":{"url":"https://a.example"}}`)},
		{API: openai, Body: []byte(`{"instructions":"https://a.example","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"https://a.example"},{"type":"input_image","image_url":"data:image/png;base64,aa"},
			{"type":"input_image","file_id":"file-1"},{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,aa"}]},
			{"type":"message","role":"assistant","content":[{"type":"output_text","text":"x","annotations":[{"type":"url_citation","url":"https://a.example"}]}]},
			{"type":"function_call","arguments":"https://a.example"},{"type":"function_call_output","output":"https://a.example"},{"type":"custom_tool_call","input":"https://a.example"},
			{"type":"custom_tool_call_output","output":[{"type":"input_text","text":"https://a.example"}]},
			{"type":"local_shell_call","action":{"type":"exec","command":["https://a.example"],"env":{"url":"https://a.example"}}},{"type":"shell_call_output","output":[{"stdout":"https://a.example","stderr":"https://a.example"}]},
			{"type":"web_search_call","action":{"type":"open_page","url":"https://a.example"}},{"type":"reasoning","summary":[{"type":"summary_text","text":"https://a.example"}],"encrypted_content":"//"},
			{"type":"tool_search_output","tools":[{"type":"function","name":"f","parameters":{"$id":"https://a.example"}}]}],"text":{"format":{"schema":{"$schema":"https://a.example"}}}}`)},
		{API: openai, Body: []byte(`{"input":"https://a.example"}`)},
		{API: openai, Body: []byte(`{"prompt":{"id":"p","variables":{"Name":"x","Type":"x","tools":"x","text":{"type":"input_text","text":"https://a.example"}}}}`)},
		{API: openai, Body: []byte(`{"messages":[{"role":"user","content":"https://a.example"},{"role":"user","content":[{"type":"text","text":"https://a.example"},{"type":"image_url","image_url":{"url":"data:image/png;base64,aa","detail":"low"}}]},
			{"role":"assistant","content":null,"reasoning_content":"https://a.example","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"https://a.example"}}]},{"role":"tool","content":"https://a.example"}]}`)},
		{API: gemini, Body: []byte(`{"systemInstruction":{"parts":[{"text":"https://a.example"}]},"contents":[{"parts":[{"text":"https://a.example","thoughtSignature":"//"},{"inlineData":{"mimeType":"image/png","data":"//aa"}},
			{"functionCall":{"name":"f","args":{"url":"https://a.example"}}},{"functionResponse":{"name":"f","response":{"output":"x","uri":"https://a.example"}}},
			{"fileData":{"mimeType":"image/png","fileUri":"https://generativelanguage.googleapis.com/v1beta/files/abc-1"}},{"codeExecutionResult":{"output":"https://a.example"}}]}],
			"generationConfig":{"responseJsonSchema":{"$schema":"https://a.example"}}}`)},
	} {
		call.Path = "/v1beta/models/m:generateContent"
		if out, err := (Rules{}).Apply(t.Context(), call); err != nil || string(out.Body) != string(call.Body) {
			t.Errorf("%s becomes %s: %v", call.Body, out.Body, err)
		}
	}
}

// TestWhatABudgetCannotCount checks what Metered refuses and changes.
func TestWhatABudgetCannotCount(t *testing.T) {
	for _, c := range []struct{ path, in, want, refusal string }{
		{"/responses", `{"background":true}`, "", "background"},
		{"/responses", `{"background": 1}`, "", "background"},
		{"/responses", `{"background":false,"stream":true}`, `{"background":false,"stream":true}`, ""},
		{"/chat/completions", `{"stream":true, "n":1}`, `{"stream":true,"n":1,"stream_options":{"include_usage":true}}`, ""},
		{"/chat/completions", `{"stream":true,"stream_options":null}`, `{"stream":true,"stream_options":{"include_usage":true}}`, ""},
		{"/chat/completions", `{"stream":true,"stream_options":{"include_usage":false,"x": 1}}`, `{"stream":true,"stream_options":{"include_usage":true,"x": 1}}`, ""},
		{"/chat/completions", `{"stream":true,"stream_options":{"include_usage": true}}`, `{"stream":true,"stream_options":{"include_usage": true}}`, ""},
		{"/chat/completions", `{"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}`, "", "twice"},
		{"/chat/completions", `{"stream":true,"stream_options":7}`, "", "stream_options"},
		{"/chat/completions", `{"stream":false}`, `{"stream":false}`, ""},
	} {
		call := Call{API: openai, Path: c.path, Body: []byte(c.in)}
		out, err := Rules{Metered: true}.Apply(t.Context(), call)
		if (err != nil) != (c.refusal != "") || err != nil && !strings.Contains(err.Error(), c.refusal) || err == nil && string(out.Body) != c.want {
			t.Errorf("%s becomes %s, %v", c.in, out.Body, err)
		}
		if out, err := (Rules{}).Apply(t.Context(), call); err != nil || string(out.Body) != c.in {
			t.Errorf("without a budget %s becomes %s, %v", c.in, out.Body, err)
		}
	}
}

func TestHowMuchACallMayGenerate(t *testing.T) {
	const generate, chat, responses = "/v1beta/models/m:generateContent", "/chat/completions", "/responses"
	for _, c := range []struct {
		api           runnerscripts.ModelAPI
		path          string
		body          string
		most, answers int64
		stored        bool
	}{
		{anthropic, "/v1/messages", `{"max_tokens":32000}`, 32000, 1, false},
		{openai, responses, `{"max_output_tokens":128000,"previous_response_id":"r"}`, 128000, 1, true},
		{openai, chat, `{"max_tokens":1,"max_completion_tokens":20,"n":3}`, 20, 3, false},
		{openai, chat, `{"max_tokens":"x","n":-3}`, 0, 1, false},
		{openai, chat, `{"max_tokens":1e99,"n":` + strings.Repeat("9", 1000) + `}`, math.MaxInt32, math.MaxInt16, false},
		{openai, chat, `{"max_tokens":1e9,"n":1e2}`, 1e9, 100, false},
		{openai, chat, `{"max_tokens":10.0,"n":" 16.0 "}`, 10, 16, false},
		{openai, chat, `{"max_tokens":1.5,"n":"NaN"}`, 0, 1, false},
		{openai, chat, `{"max_output_tokens":1}`, 0, 1, false},
		{openai, responses, `{"max_tokens":1,"max_completion_tokens":1,"n":9}`, 0, 1, false},
		{anthropic, "/v1/messages", `{"max_output_tokens":1,"n":9}`, 0, 1, false},
		{gemini, generate, `{"max_tokens":1}`, 0, 1, false},
		{gemini, generate, `{"generationConfig":{"maxOutputTokens":"8192","candidateCount":2},"cachedContent":"c"}`, 8192, 2, true},
		{gemini, generate, `{"generation_config":{"max_output_tokens":8192}}`, 8192, 1, false},
		{gemini, generate, `{"generationConfig":null}`, 0, 1, false},
	} {
		out, err := Rules{}.Apply(t.Context(), Call{API: c.api, Path: c.path, Body: []byte(c.body)})
		if err != nil || out.MaxOutput != c.most || out.Answers != c.answers || out.Stored != c.stored {
			t.Errorf("%s: %+v, %v", c.body, out, err)
		}
	}
}

func TestACallThatNobodyWaitsForIsNotReadOn(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the agent has gone")
	cancel(gone)
	body := []byte(`{"messages":[` + strings.Repeat(`0,`, 5000) + `0]}`)
	if _, err := (Rules{}).Apply(ctx, Call{API: anthropic, Body: body}); !errors.Is(err, gone) {
		t.Error(err)
	}
}

// TestTheScannerReadsWhatGoReads compares it with encoding/json.
func TestTheScannerReadsWhatGoReads(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `[1]`, `[1,]`, `[,1]`, `[1 2]`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`, `{1:2}`, `"a`, `"\u12"`, `"\u12g4"`, `"\x"`, `"\`, "\"\t\"", `"\t\u00e9"`,
		`0`, `-`, `-0`, `01`, `1.`, `1.5`, `.5`, `1e`, `1e+5`, `1E-5`, `1e5.`, `+1`, `tru`, `true`, `truex`, `false`, `null`, `nul`, ``, ` `, " [ 1 , { \"a\" : null } ] ", `]`, `[}`, `{]`, "\x00", `[[]`, "\"\xff\"", "\"\x7f\"",
	} {
		s := scanner{data: []byte(text), stop: func() error { return nil }}
		err := s.value()
		if ok := err == nil && s.next() == 0 && s.pos == len(text); ok != json.Valid([]byte(text)) {
			t.Errorf("%q: %v at %d", text, err, s.pos)
		}
	}
}

// FuzzApply checks that the result is JSON with the same meaning except for the removed tools,
// and contains nothing more to remove.
func FuzzApply(f *testing.F) {
	f.Add(byte(0), []byte(`{"model":"m","tools":[{"name":"a"},{"type":"web_search_20250305"}],"tool_choice":{"type":"tool","name":"web_search"}}`))
	f.Add(byte(1), []byte(`{"tools":[{"type":"namespace","tools":[{"type":"mcp"}]}]}`))
	f.Add(byte(2), []byte(`{"tools":[{"googleSearch":{}}],"tools ":1}`))
	f.Fuzz(func(t *testing.T, api byte, body []byte) {
		call := Call{API: []runnerscripts.ModelAPI{anthropic, openai, gemini}[api%3], Path: "/v1beta/models/m:generateContent", Body: body}
		before := bytes.Clone(body)
		out, err := Rules{}.Apply(t.Context(), call)
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed in place")
		}
		if err != nil {
			return
		}
		var is, was map[string]any
		if json.Unmarshal(out.Body, &is) != nil || json.Unmarshal(body, &was) != nil {
			t.Fatalf("no JSON object: %q", out.Body)
		}
		if len(out.Removed) == 0 && !bytes.Equal(out.Body, body) {
			t.Errorf("nothing was removed, and %q became %q", body, out.Body)
		}
		if json.Valid(body) != (err == nil) && err == nil {
			t.Errorf("damaged JSON is passed on: %q", body)
		}
		if again, err := (Rules{}).Apply(t.Context(), out.Call); err != nil || len(again.Removed) > 0 {
			t.Errorf("%q: more is removed the second time: %q, %v", out.Body, again.Removed, err)
		}
		tools, _ := is["tools"].([]any)
		for _, tool := range tools {
			kind, _ := tool.(map[string]any)["type"].(string)
			if call.API == anthropic && (strings.HasPrefix(kind, "web_") || strings.HasPrefix(kind, "mcp")) {
				t.Errorf("%q is left", kind)
			}
		}
	})
}

func BenchmarkApply(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a long prompt ", 1<<16) + `"}],"tools":[{"name":"Bash"},{"type":"web_search_20250305"}]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if out, err := (Rules{}).Apply(b.Context(), Call{API: anthropic, Path: "/v1/messages", Body: body}); err != nil || len(out.Removed) != 1 {
			b.Fatal(out.Removed, err)
		}
	}
}

// BenchmarkHostile reads bodies of 64 MiB that are made to be expensive.
func BenchmarkHostile(b *testing.B) {
	for name, build := range hostile(64 << 20) {
		b.Run(name, func(b *testing.B) {
			body, _ := build()
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Rules{}.Apply(b.Context(), Call{API: gemini, Path: "/v1beta/models/m:generateContent", Body: body})
			}
		})
	}
}
