package engine_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestTheEngineIsTheOneThatTheDockerCommandFinds(t *testing.T) {
	host := testdocker.Engine(t).DaemonHost()
	const nowhere = "unix:///no/such.sock"
	for name, c := range map[string]struct {
		host, variable, context, current string
		want                             error
	}{
		"the default":                           {"", "", "", "", nil},
		"by the configuration":                  {nowhere, "", "", "", primitives.ErrUnavailable},
		"the configuration before the variable": {host, nowhere, "", "", nil},
		"by the variable":                       {"", nowhere, "", "", primitives.ErrUnavailable},
		"the variable before contexts":          {"", host, "nowhere", "nowhere", nil},
		"by a context":                          {"", "", "nowhere", "", primitives.ErrUnavailable},
		"the chosen context before the current": {"", "", "real", "nowhere", nil},
		"by the current context":                {"", "", "", "nowhere", primitives.ErrUnavailable},
		"the context that is none":              {"", "", "default", "nowhere", nil},
		"a context that is not there":           {"", "", "other", "", fs.ErrNotExist},
		"a context that is damaged":             {"", "", "damaged", "", fs.ErrInvalid},
		"a context without an address":          {"", "", "empty", "", fs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			dir := testdocker.CleanEnv(t)
			testdocker.WriteContext(t, dir, "real", map[string]any{"Host": host})
			testdocker.WriteContext(t, dir, "nowhere", map[string]any{"Host": nowhere})
			testdocker.WriteContext(t, dir, "empty", map[string]any{})
			damaged := filepath.Dir(filepath.Dir(testdocker.WriteContext(t, dir, "damaged", nil)))
			writeFile(t, filepath.Join(dir, "contexts", "meta", filepath.Base(damaged), "meta.json"), "{")
			writeFile(t, filepath.Join(dir, "config.json"), `{"currentContext": "`+c.current+`"}`)
			t.Setenv("DOCKER_HOST", c.variable)
			t.Setenv("DOCKER_CONTEXT", c.context)
			if err := ask(t.Context(), c.host); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	t.Run("a damaged configuration", func(t *testing.T) {
		writeFile(t, filepath.Join(testdocker.CleanEnv(t), "config.json"), "{")
		if err := ask(t.Context(), ""); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAnAPIVersionThatCannotBeIsNamed(t *testing.T) {
	for _, version := range []string{"abc", "1", "1.", "1.41.2", "1.99", "1.1"} {
		t.Run(version, func(t *testing.T) {
			t.Setenv("DOCKER_API_VERSION", version)
			err := ask(t.Context(), "")
			if !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "DOCKER_API_VERSION") || !strings.Contains(err.Error(), "unset ") {
				t.Errorf("got %v", err)
			}
		})
	}
	ping, err := testdocker.Engine(t).Ping(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_API_VERSION", ping.APIVersion)
	if err := ask(t.Context(), ""); err != nil {
		t.Error(err)
	}
}
