package server

import (
	"encoding/json"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	_ "github.com/agentenv-dev/agentenv/primitives/local"
)

func TestWhatAClientLeavesOutIsTheServers(t *testing.T) {
	defaults, err := environment.ParseConfig([]byte(`{"sandbox":{"type":"local","network":"none","env":{"A":"1"}},"agent":{"name":"claude","model":"opus"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{
		`{}`:                             `{"sandbox":{"type":"local","network":"none","env":{"A":"1"}},"agent":{"name":"claude","model":"opus"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`,
		`{"agent":"claude"}`:             `{"sandbox":{"type":"local","network":"none","env":{"A":"1"}},"agent":{"name":"claude","model":"opus"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`,
		`{"agent":{"mode":"plan"}}`:      `{"sandbox":{"type":"local","network":"none","env":{"A":"1"}},"agent":{"name":"claude","model":"opus","mode":"plan"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`,
		`{"agent":"codex"}`:              `{"sandbox":{"type":"local","network":"none","env":{"A":"1"}},"agent":{"name":"codex"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`,
		`{"sandbox":"other"}`:            `{"sandbox":{"type":"other"},"agent":{"name":"claude","model":"opus"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`,
		`{"sandbox":{"env":{"B":"2"}}}`:  `{"sandbox":{"type":"local","network":"none","env":{"A":"1","B":"2"}},"agent":{"name":"claude","model":"opus"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`,
		`{"sandbox":"local","raw":true}`: `{"sandbox":{"type":"local","network":"none","env":{"A":"1"}},"agent":{"name":"claude","model":"opus"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}},"raw":true}`,
		`{"sandbox":""}`:                 `{"sandbox":{"type":"local","network":"none","env":{"A":"1"}},"agent":{"name":"claude","model":"opus"},"budget":{"query":{"time":"10m0s"},"session":{"usd":2}}}`,
		`[1]`:                            `[1]`,
		`null`:                           `null`,
	} {
		got, err := complete(defaults, json.RawMessage(given))
		if err != nil {
			t.Fatal(err)
		}
		if same(t, got) != same(t, []byte(want)) {
			t.Errorf("%s is\n%s, want\n%s", given, got, want)
		}
	}
}

// same returns JSON in one form.
func same(t *testing.T, data []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
