package environment

import (
	"bytes"
	_ "embed" // an executor
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// keyedAgent is a real agent and the API that it needs.
type keyedAgent struct {
	name    string // for the names of tests
	agent   Agent
	program func(testing.TB) string // nil if the agent is found in PATH
	api     string
	version string // of the API, in its base address
}

//go:embed testdata/executor.mjs
var keyedExecutor string

// openCode is a user's configuration that makes OpenCode, as an ACP agent, use the gateway.
const openCode = `{"model":"anthropic/claude-sonnet-4-5","small_model":"anthropic/claude-sonnet-4-5","share":"disabled",
"provider":{"anthropic":{"options":{"baseURL":"{env:ANTHROPIC_BASE_URL}/v1","apiKey":"{env:ANTHROPIC_API_KEY}"}}}}`

func keyedAgents() []keyedAgent {
	return []keyedAgent{
		{"claude", Agent{Name: "claude", PermissionMode: "acceptEdits"}, testagents.Claude, "anthropic", ""},
		{"codex", Agent{Name: "codex", Model: "gpt-5.5", PermissionMode: "full-access"}, testagents.Codex, "openai", "/v1"},
		{"gemini", Agent{Name: "gemini", Model: "gemini-2.5-pro", PermissionMode: "autoEdit"}, testagents.Gemini, "gemini", ""},
		{"opencode", Agent{Name: "opencode", Model: "anthropic/claude-sonnet-4-5", PermissionMode: "acceptEdits"}, testagents.OpenCode, "anthropic", ""},
	}
}

// otherAgents returns programs that agentenv knows only by their protocol.
func otherAgents() []keyedAgent {
	return []keyedAgent{
		{"acp", Agent{Name: "acp:opencode", PermissionMode: "build", Env: map[string]string{
			"OPENCODE_CONFIG_CONTENT": openCode, "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
		}}, testagents.OpenCode, "anthropic", ""},
		{"command", Agent{Name: "command", Command: []string{"node", "executor.mjs"}}, nil, "anthropic", ""},
	}
}

// in returns a configuration that runs the agent in a sandbox. agents is the folder there with
// the agents of the tests.
func (k keyedAgent) in(t *testing.T, box Sandbox, agents, api string) Config {
	t.Helper()
	cfg := Config{Sandbox: box, Agent: k.agent, OnPermission: AllowAll, Credentials: k.credentials(api)}
	if k.program == nil {
		cfg.Workspace = []Source{{Files: []File{{Path: "executor.mjs", Content: keyedExecutor}}}}
		return cfg
	}
	at := func(program string) string { return strings.Replace(program, testagents.Folder(t), agents, 1) }
	path := filepath.Dir(at(testagents.Ripgrep(t))) + ":/usr/local/bin:/usr/bin:/bin"
	if runnerscripts.IsRegistryAgent(k.agent.Name) { // its program is found in PATH
		path = filepath.Dir(at(k.program(t))) + ":" + path
	} else {
		cfg.Agent.Command = []string{at(k.program(t))}
	}
	cfg.Agent.Env = map[string]string{"PATH": path}
	for name, value := range k.agent.Env {
		cfg.Agent.Env[name] = value
	}
	return cfg
}

// local returns a configuration that runs the agent on this machine.
func (k keyedAgent) local(t *testing.T, api string) Config {
	t.Helper()
	return k.in(t, sandbox(t), testagents.Folder(t), api)
}

// inContainer returns a configuration that runs the agent in a container without a network, as a
// user other than the guest's.
func (k keyedAgent) inContainer(t *testing.T, api string) Config {
	t.Helper()
	const agents = "/agents"
	box := inContainer(t, testdocker.Node(t)).Sandbox
	box.User = "tester"
	box = withBlock(box, func(p *docker.Provider) {
		p.Mounts = []docker.Mount{{Source: testagents.Folder(t), Target: agents, ReadOnly: true}}
	})
	return k.in(t, box, agents, api)
}

func (k keyedAgent) credentials(api string) map[string]Credential {
	return map[string]Credential{k.api: {Env: "TEST_HOST_KEY", URL: api + k.version}}
}

// TestKeysStayOutside checks that real agents work with a key that only the host has, in a
// container without a network, as a user other than the guest's. The key must be nowhere in the
// sandbox. The agents reach their model beside a proxy that allows nothing. The gateway counts what
// they use and ends a query at its budget. Each repeats its recorded session in another sandbox.
func TestKeysStayOutside(t *testing.T) {
	t.Parallel()
	api := keyedModel(t)
	for _, c := range keyedAgents() {
		t.Run("docker/"+c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "session.replay")
			cfg := c.inContainer(t, api)
			cfg.Record, cfg.Sandbox.AllowHosts = file, []string{}
			cfg.Budget = Budget{Query: Limits{Requests: 4}, Prices: prices()}
			env, events := worksWithoutKey(t, cfg, "/")
			if env.GatewayEnv() == nil {
				t.Error("there is no proxy")
			}
			if used := env.Used(); used.Requests < 2 || used.TotalInput() == 0 || used.OutputTokens == 0 || used.CostUSD == 0 {
				t.Errorf("the gateway has counted %+v", used)
			}
			recorded := same(events, env.Primitive().Paths())
			endsAtLimit(t, env, "please endless", "requests")
			if err := env.Close(); err != nil {
				t.Fatal(err)
			}
			replays(t, c.inContainer(t, api), file, env.gate.At.Token, recorded)
			if c.name == "codex" { // one agent is enough for another type of sandbox
				replays(t, c.local(t, api), file, env.gate.At.Token, recorded)
			}
		})
	}
	for _, c := range otherAgents() {
		t.Run("docker/"+c.name, func(t *testing.T) {
			t.Parallel()
			_, events := worksWithoutKey(t, c.inContainer(t, api), "/")
			by := payloads[runnerscripts.SessionInitialized](events)
			if len(by) != 1 || by[0].Agent != c.agent.Name {
				t.Errorf("the session is of %+v", by)
			}
		})
	}
}

// TestKeysStayOutsideOfEverySandbox checks the way to the gateway from the other types of
// sandboxes, each with one agent.
func TestKeysStayOutsideOfEverySandbox(t *testing.T) {
	api, executor, codex := keyedModel(t), otherAgents()[1], keyedAgents()[1]
	t.Run("local", func(t *testing.T) {
		cfg := executor.local(t, api)
		worksWithoutKey(t, cfg, rootOf(cfg.Sandbox))
	})
	t.Run("modal", func(t *testing.T) {
		testneed.Root(t, "the server of the tests has no other user otherwise")
		box := atModal(t)
		box.Network, box.User = "none", "nobody"
		worksWithoutKey(t, executor.in(t, box, "", api), "/agentenv /etc /home /root /run /tmp /var")
	})
	t.Run("ssh", func(t *testing.T) {
		box := onAnotherMachine(t)
		worksWithoutKey(t, codex.in(t, box, testagents.Folder(t), api), box.Provider.(*ssh.Provider).Root)
	})
}

// prices returns prices for the models of the agents.
func prices() map[string]Price {
	all := map[string]Price{}
	for _, model := range []string{"gpt-5.5", "gemini-2.5-pro", "claude-sonnet-4-5"} {
		all[model] = Price{Input: 1, Output: 1}
	}
	return all
}

// worksWithoutKey runs a turn with a tool call and searches for the key, in these folders of the
// sandbox and everywhere else. It returns the turn's events.
func worksWithoutKey(t *testing.T, cfg Config, folders string) (*Environment, []runnerscripts.Event) {
	t.Helper()
	var logged syncBuffer
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &logged})
	env := create(t, cfg)
	events, err := collect(t.Context(), env, Query{Prompt: twoCalls})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, ev := range events {
		text.WriteString(ev.Text())
	}
	if !strings.Contains(text.String(), "The file is written.") {
		t.Fatalf("it said %q", text.String())
	}
	if _, err := primitives.ReadFile(t.Context(), env.Primitive(), "notes.txt", 1<<10); err != nil {
		t.Error(err)
	}
	transcript, err := env.ReadTranscript(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said, err := json.Marshal([]any{events, transcript})
	if err != nil {
		t.Fatal(err)
	}
	outside := map[string]string{"events and transcript": string(said), "log": logged.String()}
	if cfg.Sandbox.Type == "docker" {
		_, raw, err := testdocker.Engine(t).ContainerInspectWithRaw(t.Context(), env.ID(), false)
		if err != nil || len(raw) == 0 {
			t.Fatalf("inspect: %v", err)
		}
		outside["container's settings"] = string(raw) // its output is in no log of the engine
	}
	for where, text := range outside {
		if strings.Contains(text, hostKey) || strings.Contains(text, env.gate.At.Token) {
			t.Errorf("the key or the token is in the %s", where)
		}
	}
	searchSandbox(t, env, cfg.Sandbox, folders)
	searchMachine(t, env, cfg.Sandbox)
	return env, events
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// searchSandbox searches the files and processes of the sandbox, as its most privileged user.
func searchSandbox(t *testing.T, env *Environment, box Sandbox, folders string) {
	t.Helper()
	const search = `key='real-[k]ey-of-the-host'
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -a -q "$key" && echo "a process of the sandbox"
for f in $FOLDERS; do test -e $f || continue; find $f \( -path /proc -o -path /sys -o -path /agents \) -prune -o -type f -print0; done 2>/dev/null | xargs -0 grep -l -a -e "$key" 2>/dev/null
echo searched`
	cmd := primitives.Command{Args: []string{"sh", "-c", search}, Env: []string{"FOLDERS=" + folders, "PATH=/usr/bin:/bin"}}
	if box.Type == "modal" {
		cmd.User = "root" // the user of its guest
	}
	if box.Type == "local" || box.Type == "ssh" { // a process of this machine is searched from outside
		cmd.Args[2] = strings.Replace(search, "cat /proc", "false /proc", 1)
	}
	found, err := primitives.Run(t.Context(), env.Primitive(), cmd, primitives.RunOptions{})
	if got := strings.TrimSpace(string(found.Stdout)); err != nil || got != "searched" {
		t.Errorf("the key is in the sandbox: %s, %s, %v", got, found.Stderr, err)
	}
}

// searchMachine searches the state files of this machine and, if they are visible here, the
// processes of the sandbox, including the guest: their environments, arguments and memory.
func searchMachine(t *testing.T, env *Environment, box Sandbox) {
	t.Helper()
	err := filepath.WalkDir(os.Getenv("XDG_STATE_HOME"), func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // other tests remove theirs
		}
		if data, _ := os.ReadFile(name); bytes.Contains(data, []byte(hostKey)) {
			t.Errorf("this machine has written the key down in %s", name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, pid := range processes(t, env, box) {
		proc := filepath.Join("/proc", pid)
		environ, _ := os.ReadFile(filepath.Join(proc, "environ")) // of another user, or gone
		cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		if bytes.Contains(append(environ, cmdline...), []byte(hostKey)) || memoryHas(proc, hostKey) {
			t.Errorf("process %s of the sandbox has the key: %q", proc, cmdline)
		}
	}
}

// processes returns the IDs of the sandbox's processes on this machine, including the guest's.
// At Modal they cannot be told from those of other sandboxes.
func processes(t *testing.T, env *Environment, box Sandbox) (ids []string) {
	t.Helper()
	switch box.Type {
	case "docker":
		top, err := testdocker.Engine(t).ContainerTop(t.Context(), env.ID(), []string{"-eo", "pid"})
		if err != nil || len(top.Processes) == 0 {
			t.Fatalf("processes of the container: %v", err)
		}
		for _, row := range top.Processes {
			ids = append(ids, row[0])
		}
	case "local", "ssh":
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			t.Fatal(err)
		}
		for _, proc := range all {
			environ, _ := os.ReadFile(filepath.Join(proc, "environ"))
			cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
			if id := filepath.Base(proc); id != strconv.Itoa(os.Getpid()) && bytes.Contains(append(environ, cmdline...), []byte(env.Primitive().Paths().Home)) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// memoryHas reports whether the writable memory of a process has a text, as far as it can be
// read. It skips areas that only reserve addresses.
func memoryHas(proc, text string) bool {
	const most = 256 << 20
	maps, _ := os.ReadFile(filepath.Join(proc, "maps"))
	memory, err := os.Open(filepath.Join(proc, "mem"))
	if err != nil {
		return false
	}
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to-from > most {
			continue
		}
		data := make([]byte, to-from)
		n, _ := memory.ReadAt(data, from) // an area may be gone
		if bytes.Contains(data[:n], []byte(text)) {
			return true
		}
	}
	return false
}
