package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/gateway/credentials"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestKeysAreReadFromTheirSources(t *testing.T) {
	t.Setenv("GATEWAY_TEST_KEY", realKey)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(realKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Credential{
		"env": {Env: "GATEWAY_TEST_KEY"}, "file": {File: file}, "command": {Command: []string{"cat", file}},
	} {
		c.API = runnerscripts.APIOpenAI
		up, err := c.Upstream(t.Context(), name)
		if err != nil || up.Key != realKey || up.API != runnerscripts.APIOpenAI {
			t.Errorf("%s: %+v, %v", name, up, err)
		}
	}
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("XDG_CONFIG_HOME", state)
	t.Setenv("HOME", state)
	if _, err := (Credential{Store: "house", API: "openai"}).Upstream(t.Context(), "house"); !errors.Is(err, ErrConfig) {
		t.Errorf("nothing is stored: %v", err)
	}
	store, err := credentials.Open()
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Init(t.Context())
	if err := errors.Join(err, store.Set(t.Context(), "house", realKey), store.Close()); err != nil {
		t.Fatal(err)
	}
	if up, err := (Credential{Store: "house", API: "openai"}).Upstream(t.Context(), "house"); err != nil || up.Key != realKey {
		t.Errorf("store: %+v, %v", up, err)
	}
	up, err := Credential{Env: "GATEWAY_TEST_KEY"}.Upstream(t.Context(), "gemini")
	if err != nil || up.API != runnerscripts.APIGemini {
		t.Errorf("the API of the name: %+v, %v", up, err)
	}
}

func TestSourcesWithoutAKey(t *testing.T) {
	t.Setenv("GATEWAY_TEST_EMPTY", " ")
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(open, []byte(realKey), 0o600), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	for text, c := range map[string]Credential{
		"has 0 sources":              {},
		"has 2 sources":              {Env: "A", File: "b"},
		"there is no API \"soap\"":   {Env: "A", API: "soap"},
		"no plain http":              {Env: "A", URL: "https://" + realKey + "@host"},
		"GATEWAY_TEST_NONE is not":   {Env: "GATEWAY_TEST_NONE"},
		"has an empty value":         {Env: "GATEWAY_TEST_EMPTY"},
		"no such file":               {File: filepath.Join(dir, "none")},
		"it is not yours alone":      {File: open},
		"has more than a key":        {Command: []string{"printf", `one\ntwo`}},
		"exit status 3: why":         {Command: []string{"sh", "-c", "echo " + realKey + "; echo why >&2; exit 3"}},
		"executable file not found":  {Command: []string{"no-such-program-here"}},
		"it prints more than 64 KiB": {Command: []string{"sh", "-c", "exec yes"}},
	} {
		_, err := c.Upstream(t.Context(), "anthropic")
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), realKey) {
			t.Errorf("want %q: %v", text, err)
		}
	}
	if err := (Credential{Env: "A"}).Check("a/b"); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}
