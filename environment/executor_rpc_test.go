package environment_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/executor/rpc"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestAnExecutorReachesItsHostFromTheSandbox runs the example executor: it asks for keys and for
// permission, and reports, while it works on a prompt.
func TestAnExecutorReachesItsHostFromTheSandbox(t *testing.T) {
	for _, kind := range []string{"local", "docker"} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv("XDG_CONFIG_HOME", t.TempDir())
			t.Setenv("XDG_STATE_HOME", t.TempDir())
			t.Setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
			cfg, err := environment.LoadConfig("../examples/executor-rpc/task.yaml")
			if err != nil {
				t.Fatal(err)
			}
			if kind == "docker" {
				prefix, err := exec.Command("python3", "-c", "import sys; print(sys.base_prefix)").Output()
				if err != nil {
					t.Fatal(err)
				}
				at := strings.TrimSpace(string(prefix))
				cfg.Sandbox.Type, cfg.Sandbox.Image, cfg.Sandbox.Network = "docker", testdocker.Debian(t), "none"
				cfg.Sandbox.Env = map[string]string{"PATH": filepath.Join(at, "bin") + ":/usr/bin:/bin"}
				cfg.Sandbox.Provider = &docker.Provider{Mounts: []docker.Mount{{Source: at, Target: at, ReadOnly: true}}}
			}
			cfg.Credentials["openai"] = environment.Credential{Env: "ANTHROPIC_API_KEY"} // there, and not delivered
			cfg.OnPermission = environment.RejectAll
			env, err := environment.Create(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := env.Close(); err != nil {
					t.Error(err)
				}
			})
			var events []runnerscripts.Event
			for ev, err := range env.ExecuteQuery(t.Context(), environment.Query{Prompt: "hello key:anthropic key:openai run:make run:rm"}) {
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, ev)
			}
			var said, resolved []string
			for _, ev := range events {
				switch v := ev.Value().(type) {
				case *runnerscripts.Log:
					if v.Stream == "executor" {
						said = append(said, string(v.Data))
						if v.Message != string(v.Data) {
							t.Errorf("the message %q of %s", v.Message, v.Data)
						}
					}
				case *runnerscripts.PermissionResolved:
					resolved = append(resolved, string(v.Kind)+" "+v.Reason+" "+v.Rule)
				}
			}
			if want := []string{`{"text":"hello"}`, `{"key":"anthropic","length":17}`, `{"refused":"key:openai","code":-32002}`, `{"ran":"make"}`, `{"refused":"run:rm","code":-32003}`}; !slices.Equal(said, want) {
				t.Errorf("it reported %q", said)
			}
			if want := []string{"allow_once rule Bash(make *)", "reject_once answered "}; !slices.Equal(resolved, want) {
				t.Errorf("permissions: %q", resolved)
			}
			log, err := os.ReadFile(filepath.Join(os.Getenv("XDG_STATE_HOME"), "agentenv", "audit", "audit.jsonl"))
			if n := strings.Count(string(log), `"credential":"anthropic","request":"get_api_key"`); err != nil || n != 1 || strings.Contains(string(log), "openai") {
				t.Errorf("the audit log: %v\n%s", err, log)
			}
			done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](events[len(events)-1])
			var result rpc.Result
			if err = errors.Join(err, json.Unmarshal(done.ResultData, &result)); err != nil || result.Status != "completed" || result.MessageCount != 5 {
				t.Errorf("result %s, %v", done.ResultData, err)
			}

			// The other direction, while no query runs.
			caller, err := env.Executor()
			if err != nil {
				t.Fatal(err)
			}
			if err := rpc.Ping(t.Context(), caller); err != nil {
				t.Error(err)
			}
			if r, err := rpc.ExecutePrompt(t.Context(), caller, rpc.Prompt{Prompt: "a run:make"}); err != nil || r.MessageCount != 2 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestKeysAreDeliveredToAnExecutorOnly(t *testing.T) {
	for text, word := range map[string]string{
		"{agent: claude, credentials: {anthropic: {env: X}}, deliver: [anthropic]}":                        "rpc: true",
		"{agent: {name: command, command: [x], config: {rpc: true}}, deliver: [anthropic]}":                `no credential "anthropic"`,
		"{agent: {name: command, command: [x]}, credentials: {anthropic: {env: X}}, deliver: [anthropic]}": "rpc: true",
	} {
		if _, err := environment.ParseConfig([]byte(text)); !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
