package environment_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAnExecutorProfileBecomesAnAgent(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	dir := folder(t, map[string]string{
		"task.yaml":                 "agent: executor:echo\n",
		"profiles/echo.json":        `{"type":"demo","command":["python3","lib/echo.py"],"config":{"a":1},"files":["lib","echo"],"agents_dir":"agents","lifecycle":"persistent"}`,
		"profiles/lib/echo.py":      "print(1)",
		"profiles/lib/deep/x":       "x",
		"profiles/echo/is/a/helper": "y",
	})
	cfg, err := environment.LoadConfig(filepath.Join(dir, "task.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var p executor.Profile
	if err := json.Unmarshal(cfg.Agent.Config, &p); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, f := range p.Files {
		files = append(files, f.Path)
	}
	if got := strings.Join(files, " "); cfg.Agent.Name != "command" || p.Type != "demo" || p.Lifecycle != executor.Persistent ||
		string(p.Config) != `{"a":1}` || got != "lib/deep/x lib/echo.py echo/is/a/helper" {
		t.Errorf("the agent %q has %s", cfg.Agent.Name, cfg.Agent.Config)
	}
	if got := p.At("/there"); strings.Join(got, " ") != "python3 /there/lib/echo.py" {
		t.Errorf("its command is %q", got)
	}
	// A configuration that is stored or sent needs no file any more.
	data, err := environment.FormatConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, err := environment.ParseConfig(data)
	if err != nil || agenttest.Show(t, again.Agent.Config) != agenttest.Show(t, cfg.Agent.Config) {
		t.Errorf("formatted and parsed: %s, %v", again.Agent.Config, err)
	}
	list, err := environment.Executors(filepath.Join(dir, "task.yaml"))
	if err != nil || len(list) != 1 || list[0].AgentsDir != filepath.Join(dir, "profiles", "agents") || list[0].Problem != "" {
		t.Errorf("executors: %+v, %v", list, err)
	}
}

func TestAWrongExecutorProfileSaysFileAndField(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	dir := folder(t, map[string]string{
		"json.json":       `{"type": "x", "command": `,
		"plain.json":      `{"type": "x", "command": "./large/../script.py", "files": ["script.py"]}`,
		"script.py":       "print(1)",
		"comma.json":      "{\"type\": \"x\",\n \"command\": \"sh\",\n}",
		"field.json":      `{"type": "x", "command": "sh", "livecycle": "persistent"}`,
		"kind.json":       `{"type": "x", "command": 5}`,
		"no-type.json":    `{"command": "sh"}`,
		"no-cmd.json":     `{"type": "x"}`,
		"life.json":       `{"type": "x", "command": "sh", "lifecycle": "for ever"}`,
		"missing.json":    `{"type": "x", "command": "sh", "files": ["nosuch.py"]}`,
		"outside.json":    `{"type": "x", "command": "sh", "files": ["../secret"]}`,
		"link.json":       `{"type": "x", "command": "sh", "files": ["link"]}`,
		"large.json":      `{"type": "x", "command": "sh", "files": ["large"]}`,
		"schema.json":     `{"type": "x", "command": "sh", "parameters_schema": {"type": "objct"}}`,
		"remote.json":     `{"type": "x", "command": "sh", "output_schema": {"$ref": "https://example.com/schema.json"}}`,
		"timeout.json":    `{"type": "x", "command": "sh", "timeout_seconds": 5}`,
		"long.json":       `{"type": "procedural", "command": "sh", "timeout_seconds": 10000000000}`,
		"persistent.json": `{"type": "procedural", "command": "sh", "lifecycle": "persistent"}`,
		"large":           strings.Repeat("x", 1<<20+1),
	})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, word := range map[string]string{
		"json": "json.json", "plain": "command: invalid argument: the file script.py is not executable", "comma": "it is no JSON: line 3: invalid character '}'", "field": "unknown key livecycle; did you mean lifecycle?", "kind": "command", "no-type": "type: it is missing", "no-cmd": "command: ",
		"life": "lifecycle: ", "missing": "files[0]: nosuch.py in " + dir + ": ", "outside": "files[0]: ../secret in ", "link": "files[0]: ", "large": "1048576 bytes", "schema": "parameters_schema: invalid argument: invalid JSON schema: $.type: value must be one of 'array'", "remote": "output_schema: ",
		"timeout": "timeout_seconds: ", "long": "timeout_seconds: invalid argument: it is 10000000000; give a number from 1 to ", "persistent": "lifecycle: ",
	} {
		file := filepath.Join(dir, name+".json")
		_, err := environment.FindExecutor(file, "")
		if !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "large" && !errors.Is(err, primitives.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, word := range map[string]string{
		"agent: executor:echo":                            "there are none in",
		"agent: executor:other":                           "give the configuration file, as with --config",
		`agent: "executor:"`:                              "executor: has no name; give one, such as executor:echo",
		"agent: {name: executor:echo, command: [x]}":      "leave both out",
		"agent: {name: executor:" + dir + "/nosuch.json}": "nosuch.json",
	} {
		if _, err := environment.ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", text, err)
		}
	}
	// A schema in the configuration itself needs no sandbox either.
	_, err := environment.ParseConfig([]byte(`agent: {name: command, command: [sh], config: {output_schema: {type: objct}}}`))
	if !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), "agent.config: output_schema: ") {
		t.Errorf("a schema in a configuration: %v", err)
	}
	cfg := environment.Config{Agent: environment.Agent{Name: "executor:echo"}, Sandbox: environment.Sandbox{Type: "local"}}
	if err := cfg.Check(t.Context()); !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), "FindExecutor") {
		t.Errorf("a name in Go: %v", err)
	}
}

const personSchema = `{"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}`

func TestTheSchemasOfAnExecutorAreChecked(t *testing.T) {
	t.Parallel()
	config, err := json.Marshal(executor.Profile{
		Type: executor.Procedural, Command: []string{"/bin/sh", "-c", `echo started >> started; if [ "$2" = bad ]; then echo '{"name":5}'; else echo '{"name":"x"}'; fi`, "sh"},
		ParametersSchema: json.RawMessage(personSchema), OutputSchema: json.RawMessage(personSchema),
	})
	if err != nil {
		t.Fatal(err)
	}
	env, err := environment.Create(t.Context(), environment.Config{Agent: environment.Agent{Name: "command", Config: config}, Sandbox: environment.Sandbox{Type: "local"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	for prompt, want := range map[string]struct {
		code rs.FailureCode
		path string
	}{
		`{"name": 1}`: {rs.FailParameters, "$.name"}, `{}`: {rs.FailParameters, "$"}, `hello`: {rs.FailParameters, "$"}, `{"name": "bad"}`: {rs.FailOutput, "$.name"},
	} {
		var last rs.Event
		var failed *environment.QueryError
		for ev, err := range env.ExecuteQuery(t.Context(), environment.Query{Prompt: prompt}) {
			if err == nil {
				last = ev
				continue
			}
			if f, ok := errors.AsType[*rs.ScriptFailure](err); !ok && !errors.As(err, &failed) || ok && f.Code != want.code {
				t.Errorf("%s: %v", prompt, err)
			}
		}
		got, err := rs.Payload[rs.QueryFailed](last)
		if err != nil || last.Type != rs.TypeQueryFailed || got.Code != want.code || got.Detail == nil || len(got.Detail.Violations) != 1 || got.Detail.Violations[0].Path != want.path {
			t.Errorf("%s: %s %s, %v", prompt, last.Type, last.Payload, err)
		}
	}
	done, err := env.Run(t.Context(), `{"name": "good"}`)
	if err != nil || string(done.ResultData) != `{"name":"x"}` {
		t.Errorf("result %s, %v", done.ResultData, err)
	}
	if said, err := env.Exec(t.Context(), "cat", "started"); err != nil || said != "started\nstarted\n" {
		t.Errorf("it was started: %q, %v", said, err)
	}
}

// The host knows the programs of a sandbox that is not isolated from it.
func TestAnExecutorWhoseProgramIsMissingMakesNoSandbox(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	empty, bin := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "my-executor"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	create := func(a environment.Agent) error {
		a.Name = "command"
		env, err := environment.Create(t.Context(), environment.Config{Agent: a, Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: root}}})
		if err == nil {
			err = env.Close()
		}
		return err
	}
	for _, a := range []environment.Agent{
		{Command: []string{"my-executor"}},
		{Config: json.RawMessage(`{"type": "x", "command": ["my-executor", "x"]}`)},
		{Command: []string{"sh"}, Env: map[string]string{"PATH": empty}},
	} {
		err := create(a)
		f, ok := errors.AsType[*rs.ScriptFailure](err)
		if !ok || f.Code != rs.FailAgentMissing || !strings.Contains(err.Error(), "correct the command of its profile") {
			t.Errorf("%+v: %v", a, err)
		}
	}
	if made, err := os.ReadDir(root); len(made) > 0 {
		t.Errorf("sandboxes were made: %v, %v", made, err)
	}
	for _, a := range []environment.Agent{
		{Command: []string{"my-executor"}, Env: map[string]string{"PATH": bin}},
		{Command: []string{"./my-executor"}}, // in the workspace, perhaps
		{Config: json.RawMessage(`{"type": "x", "command": "run", "files": [{"path": "run", "mode": 493}]}`)},
	} {
		if err := create(a); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
}
