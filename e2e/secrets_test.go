package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
)

// secret is a key that the scripted model refuses on request.
const secret = "sk-QASECRET-123456"

// repeatsNoKey uses an API that repeats a rejected key in its error. No event and no error may
// contain the key; the address to check stays.
func repeatsNoKey(t *testing.T, env *environment.Environment, agent, url string) {
	t.Helper()
	var said strings.Builder
	var failed error
	for ev, err := range env.ExecuteQuery(t.Context(), environment.Query{Prompt: "please echo-key"}) {
		if err != nil {
			failed = err
			continue
		}
		line, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		said.Write(append(line, '\n'))
		if strings.Contains(string(line), "QASECRET") {
			t.Errorf("an event has the key: %s", line)
		}
	}
	if failed == nil || strings.Contains(failed.Error(), "QASECRET") {
		t.Errorf("the error is %v", failed)
	}
	if !strings.Contains(said.String(), "[redacted]") {
		t.Errorf("nobody has repeated the key:\n%s", said.String())
	}
	if agent == "codex" && !strings.Contains(said.String(), "url: "+url+"/v1/responses") {
		t.Errorf("the address is hidden:\n%s", said.String())
	}
}
