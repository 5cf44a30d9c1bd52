package coordapi

import (
	"strings"
	"testing"
)

func TestAnErrorOfABodyNamesTheKey(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":5}`:                               "prompt: it is a number; give a text",
		`{"additional_demands":{"tags":"gpu"}}`:      "additional_demands.tags: it is a text; give a list",
		`{"additional_demands":[]}`:                  "additional_demands: it is a list; give an object",
		`{"prompt":"x",}`:                            "invalid JSON: invalid character '}'",
		`{"prompt":"x"`:                              "invalid JSON: unexpected end",
		"{\"prompt\":\"\xff\"}":                      "invalid JSON: it has bytes that are no UTF-8",
		`{"prompt":"x","prompt":"y"}`:                "the key prompt stands twice",
		`{"promt":"x"}`:                              "promt: there is no such key; did you mean prompt? There are: additional_demands, agent_name",
		`{"Prompt":"x"}`:                             "Prompt: there is no such key; did you mean prompt?",
		`{"additional_demands":{"huge":true}}`:       "additional_demands.huge: there is no such key. There are: executor_profile, executor_type, hostname, project_dir, tags",
		`[]`:                                         "it is a list; give an object",
		`{"parameters":{"any":1},"scope":{"x":[1]}}`: "",
		`{"additional_demands":null}`:                "",
	} {
		var in NewRun
		err := Decode([]byte(body), &in, true)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	var in NewRun
	if err := Decode([]byte(`{"promt":"x","prompt":"y"}`), &in, false); err != nil || in.Prompt != "y" {
		t.Errorf("not strict: %v, %+v", err, in)
	}
}

func TestAnErrorOfAFileOfAgentsNamesTheKey(t *testing.T) {
	for text, want := range map[string]string{
		`[{"name":"a"},{"name":"b","hooks":{"on_run_start":{"agent_nam":"c"}}}]`: "[1].hooks.on_run_start.agent_nam: there is no such key; did you mean",
		`[{"name":5}]`:    "name: it is a number; give a text",
		`{"name":"a"}`:    "it is an object; give a list",
		`[{"name":"a"},]`: "invalid JSON: invalid character ']'",
	} {
		if _, err := ParseAgents([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
