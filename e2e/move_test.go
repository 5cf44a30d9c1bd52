package e2e_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	_ "github.com/agentenv-dev/agentenv/primitives/modal"
)

// TestASessionOfEveryAgentMoves prompts on this machine and continues in a container or in a
// sandbox at Modal; one agent moves through both. It checks that the model gets the earlier
// conversation and that the workspace is unchanged.
func TestASessionOfEveryAgentMoves(t *testing.T) {
	testneed.Root(t, "only then have sandboxes of the server of the tests a root of their own")
	server, err := testmodal.Start(context.WithoutCancel(t.Context()), testmodal.Options{Programs: []string{programs(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	server.Setenv(t)
	api := model(t, testdocker.Gateway(t)+":0")
	container := environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: testdocker.Node(t), Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: &docker.Provider{Pull: docker.PullNever, Mounts: []docker.Mount{{Source: programs(t), Target: programs(t), ReadOnly: true}}}}
	atModal := environment.Sandbox{Type: "modal", Spec: primitives.Spec{Image: "debian:12", Grace: 300 * time.Second}}
	places := map[string][]environment.Sandbox{"claude": {atModal}, "codex": {container, atModal}, "gemini": {container}, "opencode": {container}}
	for _, a := range realAgents(t) {
		t.Run(a.name, func(t *testing.T) {
			cfg := a.config(api.URL)
			cfg.Sandbox = environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}}
			cfg.OnPermission = environment.AllowAll
			env, err := environment.Create(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := env.Close(); err != nil {
					t.Error(err)
				}
			}()
			ask(t, env, "please write-file `notes.txt`")
			want := ""
			for _, to := range places[a.name] {
				moved, err := env.Move(t.Context(), environment.Config{Sandbox: to})
				if err != nil {
					t.Fatalf("to %s: %v", to.Type, err)
				}
				env = moved
				if text := ask(t, env, "remember"); !strings.Contains(text, "write-file `notes.txt`") {
					t.Errorf("%s: it remembers %q", to.Type, text)
				}
				notes, err := primitives.ReadFile(t.Context(), env.Primitive(), "notes.txt", 100)
				if err != nil || !strings.HasPrefix(string(notes), "hello from the scripted model") {
					t.Errorf("%s: its file is %q, %v", to.Type, notes, err)
				}
				ask(t, env, "now run-command `echo "+to.Type+" >> where.txt`")
				want += to.Type + "\n"
			}
			where, err := primitives.ReadFile(t.Context(), env.Primitive(), "where.txt", 100)
			if err != nil || want == "" || string(where) != want {
				t.Errorf("its commands wrote %q, %v", where, err)
			}
			list, err := env.Changes(t.Context())
			if err != nil || len(list) != 2 {
				t.Errorf("changes since the beginning: %v, %v", list, err)
			}
		})
	}
}

// ask runs a query and returns the text of the answer.
func ask(t *testing.T, env *environment.Environment, prompt string) string {
	t.Helper()
	var said strings.Builder
	for ev, err := range env.ExecuteQuery(t.Context(), environment.Query{Prompt: prompt}) {
		if err != nil {
			t.Fatalf("%s: %v", prompt, err)
		}
		said.WriteString(ev.Text())
	}
	return said.String()
}
