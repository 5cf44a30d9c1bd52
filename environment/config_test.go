package environment

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
)

func TestParseConfigIsStrict(t *testing.T) {
	cases := map[string]struct {
		text string
		want []string // parts of the message
	}{
		"unknown key":                     {"sandbox: local\nagnet: {}", []string{"unknown key agnet", "agent"}},
		"unknown key below":               {"agent: {name: x, mood: y}", []string{"unknown key agent.mood", "model"}},
		"unknown key in a list":           {"workspace:\n- folder: {path: .}\n- folder: {path: ., ignroe: [a]}", []string{"workspace[1].folder.ignroe", "ignore"}},
		"unknown key of the sandbox":      {"sandbox: {type: local, image: x, memroy: 1g}", []string{"unknown key sandbox.memroy", "did you mean memory?"}},
		"key of one kind":                 {"sandbox: {type: docker, seccomp: x}", []string{"unknown key sandbox.seccomp", "did you mean sandbox.docker.seccomp?"}},
		"key of another place":            {"sandbox: local\nkeep: true", []string{"unknown key keep", "did you mean sandbox.keep?"}},
		"permission":                      {"agent: claude\npermission: allow", []string{"unknown key permission", "did you mean permissions?"}},
		"duration without a unit":         {"sandbox: {type: docker, grace: 60}", []string{"sandbox.grace: 60 is no duration", "2h"}},
		"no duration":                     {"sandbox: {type: modal, modal: {timeout: soon}}", []string{`sandbox.modal.timeout: "soon" is no duration; write 90s or 2h`}},
		"text for a list":                 {"sandbox: {type: docker, ports: '8080'}", []string{"sandbox.ports: it is a text; give a list"}},
		"part of a number":                {"agent: {max_turns: 1.5}", []string{"agent.max_turns: it is 1.5; give a whole number"}},
		"too large a number":              {"sandbox: {type: docker, docker: {pids: 1e99}}", []string{"sandbox.docker.pids: it is 1e+99; give a whole number"}},
		"negative mode":                   {"workspace: [{files: [{path: x, mode: -1}]}]", []string{"workspace[0].files[0].mode: it is -1; give a whole number from 0"}},
		"no mapping at all":               {"hello", []string{"invalid configuration: it is a text; give a mapping"}},
		"a fraction of a user":            {"sandbox: {type: docker, user: 1.5}", []string{"sandbox.user", "it is 1.5; give a text"}},
		"list of variables":               {"sandbox: {type: docker, env: [A=b]}", []string{"sandbox.env", "it is a list; give a mapping"}},
		"another case of a key":           {"Agent: {name: x}", []string{"unknown key Agent"}},
		"duplicate key":                   {"sandbox: local\nsandbox: local", []string{"sandbox"}},
		"duplicate key in JSON":           {`{"agent": {"name": "a", "name": "b"}}`, []string{"agent.name", "twice"}},
		"shared key in a block":           {"sandbox: {type: local, docker: {image: x}}", []string{"unknown key sandbox.docker.image", "did you mean sandbox.image?"}},
		"two sandbox types in a list":     {"sandbox: [local, docker]", []string{"sandbox", "give a type"}},
		"unknown sandbox type":            {"sandbox: lokal", []string{"lokal", "choose one of: docker, local"}},
		"sandbox without a type":          {"sandbox: {image: x}", []string{"sandbox.type"}},
		"another type of a value":         {"agent: {max_turns: many}", []string{"agent.max_turns", `it is "many"; give a whole number`}},
		"second document":                 {"sandbox: local\n---\nsandbox: local", []string{"more than one document"}},
		"second after a marker":           {"--- {sandbox: local}\n---\nsandbox: local", []string{"more than one document"}},
		"second after an empty one":       {"---\n--- # here it is\nsandbox: local", []string{"more than one document"}},
		"second after an end":             {"sandbox: local\n...\nsandbox: local", []string{"more than one document"}},
		"no YAML":                         {"a: [", []string{"yaml"}},
		"bad environment":                 {"agent: {env: {'A=B': c}}", []string{"A=B"}},
		"source without a kind":           {"workspace: [{into: x}]", []string{"workspace[0]", "exactly one"}},
		"source of two kinds":             {"workspace: [{folder: {path: .}, tar: {path: x}}]", []string{"workspace[0]", "exactly one"}},
		"path that leads out":             {"workspace: [{files: [{path: ../x}]}]", []string{"workspace[0]", "files[0]", "../x"}},
		"absolute path":                   {"workspace: [{files: [{path: /etc/x}]}]", []string{"/etc/x", "relative"}},
		"into that leads out":             {"workspace: [{into: a/../.., files: [{path: x}]}]", []string{"into"}},
		"setuid file":                     {"workspace: [{files: [{path: x, mode: 04755}]}]", []string{"mode"}},
		"bad pattern":                     {"workspace: [{folder: {path: ., ignore: ['[']}}]", []string{"workspace[0]", "ignore", `"["`}},
		"git option as address":           {"workspace: [{git: {url: '--upload-pack=x'}}]", []string{"git", "url"}},
		"git option as ref":               {"workspace: [{git: {url: x, ref: --help}}]", []string{"ref"}},
		"git helper":                      {"workspace: [{git: {url: 'ext::sh -c x'}}]", []string{"remote helpers"}},
		"a coordinator's key":             {"coordinator: {url: 'http://c', profile: p, credential: the-key}", []string{"coordinator.credential"}},
		"a coordinator without a profile": {"coordinator: {url: 'http://c'}", []string{"coordinator.profile"}},
		"unknown key of a coordinator":    {"coordinator: {url: 'http://c', profil: p}", []string{"unknown key coordinator.profil", "did you mean profile?"}},
		"tar of nothing":                  {"workspace: [{tar: {}}]", []string{"tar"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig([]byte(c.text))
			if !errors.Is(err, ErrConfig) {
				t.Fatalf("error %v, want ErrConfig", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "Spec") || strings.Contains(err.Error(), "[]") {
					t.Errorf("error %q does not say %q in the words of the file", err, part)
				}
			}
		})
	}
}

func TestParseConfigTakesTheMarkersOfOneDocument(t *testing.T) {
	for _, text := range []string{
		"---\nsandbox: local\n", "# first\n\n---\r\nsandbox: local\r\n...\r\n\r\n# last\n",
		"sandbox: local\nagent:\n  system_prompt: |\n    ---\n    --- x\n", "%YAML 1.1\n---\nsandbox: local\n...\n",
	} {
		if cfg, err := ParseConfig([]byte(text)); err != nil || cfg.Sandbox.Type != "local" {
			t.Errorf("%q: %+v, %v", text, cfg.Sandbox, err)
		}
	}
}

const wholeConfig = `
# a comment
sandbox: {type: local, env: {A: b}, keep: true, grace: 90s, local: {root: ./boxes}}
agent:
  name: script
  config: {turns: [], whatever: {is: "the agent's"}}
  env: {KEY: value}
coordinator:
  url: https://c.example
  profile: coding
  oauth2: {token_url: "https://t.example/token", client_id: c, credential: {file: client.key}, audience: a, scopes: [s]}
  allow: [POST /runs]
workspace:
  - files:
      - {path: a/b.txt, content: "text\n", mode: 0755}
  - {into: src, folder: {path: ../src, ignore: ["*.log"], gitignore: true}}
  - {git: {url: ../repo, ref: main, history: true}}
  - {git: {url: "https://example.com/x.git"}}
  - {tar: {path: x.tar.gz}}
ignore_changes: [vendor]
session_id: 0b5ab1b9-2f2c-4b3e-9b3c-0f3c2a8f6a11
raw: true
runner: envrunner
scripts: {execute_query: [sh, run.sh]}
`

func TestLoadConfigReadsEverything(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "conf", "env.yaml")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(wholeConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := LoadConfig(name)
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "conf")
	want := Config{
		Sandbox: Sandbox{Type: "local", Spec: primitives.Spec{Env: map[string]string{"A": "b"}, Keep: true, Grace: 90 * time.Second}, Provider: &local.Provider{Root: filepath.Join(conf, "boxes")}},
		Agent:   Agent{Name: "script", Config: json.RawMessage(`{"turns":[],"whatever":{"is":"the agent's"}}`), Env: map[string]string{"KEY": "value"}},
		Coordinator: Coordinator{URL: "https://c.example", Profile: "coding", Allow: []string{"POST /runs"}, OAuth2: &OAuth2{
			TokenURL: "https://t.example/token", ClientID: "c", Credential: KeySource{File: filepath.Join(conf, "client.key")}, Audience: "a", Scopes: []string{"s"},
		}},
		Workspace: []Source{
			{Files: []File{{Path: "a/b.txt", Content: "text\n", Mode: 0o755}}},
			{Into: "src", Folder: &Folder{Path: filepath.Join(dir, "src"), Ignore: []string{"*.log"}, Gitignore: true}},
			{Git: &Git{URL: filepath.Join(dir, "repo"), Ref: "main", History: true}},
			{Git: &Git{URL: "https://example.com/x.git"}},
			{Tar: &Tar{Path: filepath.Join(conf, "x.tar.gz")}},
		},
		IgnoreChanges: []string{"vendor"},
		SessionID:     "0b5ab1b9-2f2c-4b3e-9b3c-0f3c2a8f6a11",
		Raw:           true,
		Runner:        filepath.Join(conf, "envrunner"),
		Scripts:       Scripts{ExecuteQuery: []string{"sh", "run.sh"}},
	}
	for i := range got.Workspace {
		got.Workspace[i].config = ""
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	// Written configurations can be read again, in JSON as in YAML.
	data, err := json.MarshalIndent(got, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	if again.Agent.Config = got.Agent.Config; !reflect.DeepEqual(again, got) {
		t.Errorf("after JSON\n%+v\nwant\n%+v", again, got)
	}
}

func TestSandboxIsATypeOrAMapping(t *testing.T) {
	for text, want := range map[string]Sandbox{
		"sandbox: local":                             {Type: "local"},
		"sandbox: {type: local}":                     {Type: "local"},
		"sandbox: {type: local, local: {root: /r}}":  {Type: "local", Provider: &local.Provider{Root: "/r"}},
		"sandbox: {type: local, docker: {pids: 99}}": {Type: "local", others: map[string]any{"docker": &docker.Provider{Pids: 99}}},
		"sandbox: ssh:build1":                        {Type: "ssh", Provider: &ssh.Provider{Host: "build1"}},
		`{"sandbox": "local"}`:                       {Type: "local"},
		"agent: {name: x}":                           {},
		"--- # a marker\nsandbox: local\n":           {Type: "local"},
		"sandbox:\n  type: local\n  user: u":         {Type: "local", Spec: primitives.Spec{User: "u"}},
		"sandbox: {type: local, user: 4711}":         {Type: "local", Spec: primitives.Spec{User: "4711"}},
		"sandbox: {type: local, user: 1000:1000}":    {Type: "local", Spec: primitives.Spec{User: "1000:1000"}},
	} {
		cfg, err := ParseConfig([]byte(text))
		if err != nil || !reflect.DeepEqual(cfg.Sandbox, want) {
			t.Errorf("%s: %+v, %v; want %+v", text, cfg.Sandbox, err, want)
		}
	}
}

func TestCreateRefusesWhatItCannotMake(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want error
	}{
		"no type":       {Config{}, ErrConfig},
		"unknown type":  {Config{Sandbox: Sandbox{Type: "nowhere"}}, ErrConfig},
		"bad source":    {Config{Sandbox: Sandbox{Type: "local"}, Workspace: []Source{{}}}, ErrConfig},
		"escaping file": {Config{Sandbox: Sandbox{Type: "local"}, Workspace: []Source{{Files: []File{{Path: "../x"}}}}}, primitives.ErrPathEscape},
		"no such root":  {Config{Sandbox: Sandbox{Type: "local", Provider: &local.Provider{Root: "/dev/null/x"}}}, nil},
	} {
		if env, err := Create(t.Context(), c.cfg); err == nil {
			_ = env.Close()
			t.Errorf("%s: no error", name)
		} else if c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
	_, err := Create(t.Context(), Config{Sandbox: Sandbox{Type: "nowhere"}})
	if err == nil || !strings.Contains(err.Error(), "local") {
		t.Errorf("an unknown type does not list what there is: %v", err)
	}
}

func TestSizesMayHaveUnits(t *testing.T) {
	cfg, err := ParseConfig([]byte("sandbox: {type: docker, image: x, memory: 512MiB, docker: {disk: 2g}}"))
	if want := (&docker.Provider{Disk: 2 << 30}); err != nil || cfg.Sandbox.Memory != 512<<20 || !reflect.DeepEqual(cfg.Sandbox.Provider, want) {
		t.Errorf("memory %d and %+v, %v", cfg.Sandbox.Memory, cfg.Sandbox.Provider, err)
	}
	_, err = ParseConfig([]byte("sandbox: {type: docker, image: x, memory: lots}"))
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "sandbox.memory: ") || !strings.Contains(err.Error(), "512m") {
		t.Errorf("a memory of lots: %v", err)
	}
}

func TestShortFormsOfAConfiguration(t *testing.T) {
	short, err := ParseConfig([]byte("agent: claude\nworkspace: [{folder: ., into: a}, {git: 'https://example.com/r#v1'}, {tar: x.tar}]"))
	if err != nil {
		t.Fatal(err)
	}
	long, err := ParseConfig([]byte(`agent: {name: claude}
workspace: [{folder: {path: ., gitignore: true, history: true}, into: a}, {git: {url: 'https://example.com/r', ref: v1}}, {tar: {path: x.tar}}]`))
	if err != nil || !reflect.DeepEqual(short, long) {
		t.Errorf("%+v\nand\n%+v, %v", short, long, err)
	}
}

func TestAConfigurationThatDoesNotExistIsNamed(t *testing.T) {
	name := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := LoadConfig(name); !errors.Is(err, fs.ErrNotExist) || err.Error() != "configuration "+name+": file does not exist" {
		t.Errorf("LoadConfig: %v", err)
	}
}

// TestTheTableOfKeysHasAll checks that docs/configuration.md has a row for each key of a
// configuration.
func TestTheTableOfKeysHasAll(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(doc), "\n## ")
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if key != "" && key != "-" && !strings.Contains(table, "\n| `"+key+"` |") {
			t.Errorf("the key %s is not in the table", key)
		}
	}
}

func TestWrongSettingsAreNamedAsInFiles(t *testing.T) {
	bad := func(setting string) error {
		return &primitives.Error{Op: "create", Err: &primitives.SettingError{Setting: setting, Problem: "it is wrong; mend it", Err: fs.ErrInvalid}}
	}
	for _, tt := range []struct {
		err  error
		is   error
		want string
	}{
		{bad("memory"), ErrConfig, "invalid configuration: sandbox.memory: it is wrong; mend it"},
		{bad("ports[1]"), ErrConfig, "invalid configuration: sandbox.ports[1]: it is wrong; mend it"},
		{bad("publish[0].host"), ErrConfig, "invalid configuration: sandbox.docker.publish[0].host: it is wrong; mend it"},
		{errors.Join(bad("cpus"), bad("pids")), ErrConfig, "invalid configuration: sandbox.cpus: it is wrong; mend it\ninvalid configuration: sandbox.docker.pids: it is wrong; mend it"},
		{primitives.Spec{Memory: 1}.Refuse("there is none", "memory"), errors.ErrUnsupported, "unsupported operation: sandbox.memory: there is none"},
		{errors.Join(bad("user"), fs.ErrPermission), fs.ErrPermission, "invalid configuration: sandbox.user: it is wrong; mend it\npermission denied"},
		{fs.ErrNotExist, fs.ErrNotExist, "file does not exist"},
		{fs.ErrInvalid, ErrConfig, "invalid configuration: sandbox: invalid argument"},
	} {
		if err := (Sandbox{Type: "docker"}).settingError(tt.err); !errors.Is(err, tt.is) || err.Error() != tt.want {
			t.Errorf("%v is %v, want %s", tt.err, err, tt.want)
		}
	}
}

func TestAFormattedConfigurationIsTheSame(t *testing.T) {
	const text = `{
		"sandbox": {"type": "local", "env": {"A": "1"}, "grace": "1m30s", "memory": "2GiB"},
		"agent": {"name": "script", "config": {"turns": []}, "env": {"B": "2"}},
		"budget": {"query": {"time": "10m"}, "session": {"usd": 2}},
		"workspace": [{"files": [{"path": "a", "content": "x"}]}], "raw": true
	}`
	cfg, err := ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	data, err := FormatConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ParseConfig(data); err != nil || !reflect.DeepEqual(again, cfg) {
		t.Errorf("%s is %+v, want %+v; %v", data, again, cfg, err)
	}
}
