package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
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
		{"web search", anthropic, `{"model": "m","tools":[{"name":"Bash"}, {"type":"web_search_20250305","name":"web_search","max_uses":8}],"n": 1}`, `{"model":"m","tools":[{"name":"Bash"}],"n":1}`, "web_search"},
		{"nothing is left", anthropic, `{"tools":[{"type":"web_search_20250305"}],"tool_choice":{"type":"tool","name":"web_search"},"n":1}`, `{"n":1}`, "web_search"},
		{"the choice of one", anthropic, `{"tools":[{"name":"Bash"},{"type":"web_fetch_20250910"}],"tool_choice":{"type":"tool","name":"web_fetch"}}`, `{"tools":[{"name":"Bash"}]}`, "web_fetch"},
		{"the choice of another", anthropic, `{"tools":[{"name":"Bash"},{"type":"web_fetch_20250910"}],"tool_choice":{"type":"tool","name":"Bash"}}`, `{"tools":[{"name":"Bash"}],"tool_choice":{"type":"tool","name":"Bash"}}`, "web_fetch"},
		{"code, mcp and what is new", anthropic, `{"tools":[{"type":"code_execution_20250825"},{"type":"mcp_toolset"},{"type":"teleport_20270101"}],"mcp_servers":[{"url":"https://x"}],"container":{"skills":[]}}`, `{}`, "code_execution,code_execution,mcp,mcp,teleport"},
		{"an escaped name", anthropic, `{"\u0074ools":[{"\u0074ype":"\u0077eb_search_20250305"}],"n":1}`, `{"n":1}`, "web_search"},
		{"codex's own tools", openai, `{"tools":[{"type":"function","name":"shell"},{"type":"custom"},{"type":"local_shell"},{"type":"apply_patch"},{"type":"shell","environment":{"type":"local"}},{"type":"shell"},{"type":"namespace","tools":[{"type":"function"}]}],"tool_choice":"auto"}`, "", ""},
		{"responses", openai, `{"tools":[{"type":"function"},{"type":"web_search"},{"type":"web_search_preview_2025_03_11"},{"type":"file_search"},{"type":"code_interpreter","container":{}},{"type":"image_generation"},{"type":"mcp"},{"type":"shell","environment":{"type":"container_auto"}},{"type":"namespace","tools":[{"type":"mcp"}]}],"tool_choice":{"type":"web_search"}}`, `{"tools":[{"type":"function"}]}`, "code_execution,code_execution,file_search,image_generation,mcp,mcp,web_search,web_search"},
		{"chat", openai, `{"web_search_options":{},"tools":[{"type":"function"}],"tool_choice":"required"}`, `{"tools":[{"type":"function"}],"tool_choice":"required"}`, "web_search"},
		{"gemini's own tools", gemini, `{"tools":[{"functionDeclarations":[{"name":"googleSearch"}]},{"function_declarations":[]}]}`, "", ""},
		{"gemini", gemini, `{"tools":[{"googleSearch":{}},{"functionDeclarations":[{}],"url_context":{}},{"codeExecution":{}},{"google_search_retrieval":{}}]}`, `{"tools":[{"functionDeclarations":[{}]}]}`, "code_execution,web_fetch,web_search,web_search"},
		{"gemini, nothing is left", gemini, `{"contents":[],"tools":[{"googleSearch":{}}],"toolConfig":{"functionCallingConfig":{"mode":"ANY"}}}`, `{"contents":[]}`, "web_search"},
		{"a prompt about tools", anthropic, `{"messages":[{"content":"say \"tools\":[{\"type\":\"web_search_20250305\"}]"}],"metadata":{"tools":[{"type":"web_search_20250305"}]}}`, "", ""},
		{"no tools", openai, `{"tools":null}`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := Call{API: c.api, Path: "/v1beta/models/m:generateContent", Body: []byte(c.in)}
			out, _, removed, err := Rules{}.Apply(call)
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if want == "" {
				want = c.in // unchanged
			}
			slices.Sort(removed)
			if got := string(out.Body); got != want || strings.Join(removed, ",") != c.removed {
				t.Errorf("%s, removed %q", got, removed)
			}
			for _, rules := range []Rules{{ProviderTools: []string{"*"}}, {ProviderTools: removed}} {
				if out, _, gone, err := rules.Apply(call); err != nil || string(out.Body) != c.in || len(gone) > 0 {
					t.Errorf("with %q: %s, %q, %v", rules.ProviderTools, out.Body, gone, err)
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
		out, model, _, err := rules.Apply(c.call)
		if refusal, ok := errors.AsType[*RefusedError](err); ok != c.forbidden || ok && !strings.Contains(refusal.Message, "models.allow") {
			t.Errorf("%s: %v", c.call.Body, err)
		}
		if !c.forbidden && (model != c.model || out.Path != c.path || string(out.Body) != c.body) {
			t.Errorf("%s: %q %s %s", c.call.Body, model, out.Path, out.Body)
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
		`{"tools":[{"type":7}]}`, `{"tools":["web_search"]}`, `{"tools":{"type":"web_search"}}`, `{"tools":[null]}`,
		`{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`,
	} {
		if _, _, _, err := (Rules{}).Apply(Call{API: anthropic, Path: "/v1/messages", Body: []byte(body)}); err == nil {
			t.Errorf("%.80s is passed on", body)
		} else if _, ok := errors.AsType[*RefusedError](err); !ok {
			t.Errorf("%.80s: %T", body, err)
		}
	}
	for _, model := range []string{"gpt-4o-search-preview", "gpt-5-search-api"} {
		if _, _, _, err := (Rules{}).Apply(Call{API: openai, Body: []byte(`{"model":"` + model + `"}`)}); err == nil {
			t.Errorf("%s searches the web", model)
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
		out, _, removed, err := Rules{}.Apply(call)
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
		if len(removed) == 0 && !bytes.Equal(out.Body, body) {
			t.Errorf("nothing was removed, and %q became %q", body, out.Body)
		}
		if _, _, more, err := (Rules{}).Apply(out); err != nil || len(more) > 0 {
			t.Errorf("%q: more is removed the second time: %q, %v", out.Body, more, err)
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
		if _, _, removed, err := (Rules{}).Apply(Call{API: anthropic, Path: "/v1/messages", Body: body}); err != nil || len(removed) != 1 {
			b.Fatal(removed, err)
		}
	}
}
