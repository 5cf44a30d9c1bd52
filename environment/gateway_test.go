package environment

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
)

// hostKey is the key that only this machine has. Its name here must not have the letters
// in a row that are searched for.
const hostKey = "real-" + "key-of-the-host-4711"

// keyedModel serves the scripted model to those who have the key, and returns its address.
func keyedModel(t *testing.T) string {
	t.Helper()
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	target, err := url.Parse(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	return keyed(t, httputil.NewSingleHostReverseProxy(target))
}

// keyed serves to those who have the key, and returns the address.
func keyed(t *testing.T, forward http.Handler) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")+r.Header.Get("X-Goog-Api-Key"), hostKey) {
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// keyedAgent is a real agent and the API that it needs.
type keyedAgent struct {
	agent   Agent
	program func(testing.TB) string
	api     string
	version string // of the API, in its base address
}

func keyedAgents() []keyedAgent {
	return []keyedAgent{
		{Agent{Name: "claude", PermissionMode: "acceptEdits"}, testagents.Claude, "anthropic", ""},
		{Agent{Name: "codex", Model: "gpt-5.5", PermissionMode: "full-access"}, testagents.Codex, "openai", "/v1"},
		{Agent{Name: "gemini", Model: "gemini-2.5-pro", PermissionMode: "autoEdit"}, testagents.Gemini, "gemini", ""},
		{Agent{Name: "opencode", Model: "anthropic/claude-sonnet-4-5", PermissionMode: "acceptEdits"}, testagents.OpenCode, "anthropic", ""},
	}
}

// local is a configuration that runs it on this machine.
func (k keyedAgent) local(t *testing.T, api string) Config {
	t.Helper()
	agent := k.agent
	agent.Command = []string{k.program(t)}
	agent.Env = map[string]string{"PATH": filepath.Dir(testagents.Ripgrep(t)) + ":" + os.Getenv("PATH")}
	return Config{Sandbox: sandbox(t), Agent: agent, Credentials: k.credentials(api)}
}

func (k keyedAgent) credentials(api string) map[string]Credential {
	return map[string]Credential{k.api: {Env: "TEST_HOST_KEY", URL: api + k.version}}
}

// TestKeysStayOutside: real agents work with a key that only the host has, also where the
// sandbox has no network and its user is not the guest's; and the key is nowhere in there.
func TestKeysStayOutside(t *testing.T) {
	t.Setenv("TEST_HOST_KEY", hostKey)
	api := keyedModel(t)
	for _, c := range keyedAgents() {
		t.Run(c.agent.Name+"/local", func(t *testing.T) {
			worksWithoutKey(t, c.local(t, api))
		})
		if c.agent.Name != "claude" && c.agent.Name != "codex" {
			continue // no image that is made without the network has it
		}
		t.Run(c.agent.Name+"/docker", func(t *testing.T) {
			cfg := inContainer(t, testdocker.Node(t))
			cfg.Agent, cfg.Credentials, cfg.Sandbox.User = c.agent, c.credentials(api), "tester"
			worksWithoutKey(t, cfg)
		})
	}
}

// worksWithoutKey runs a turn with a tool call and searches for the key.
func worksWithoutKey(t *testing.T, cfg Config) {
	t.Helper()
	env := create(t, cfg)
	events, err := collect(t.Context(), env, Query{Prompt: "please write-file `notes.txt`"})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, ev := range events {
		text.WriteString(ev.Text())
	}
	said, err := json.Marshal(events)
	if err != nil || !strings.Contains(text.String(), "The file is written.") {
		t.Fatalf("it said %q, %v", text.String(), err)
	}
	transcript, err := env.ReadTranscript(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The agent still runs: its environment and arguments are there to be read. What cannot
	// be read is another user's, whom the agent is not.
	const search = `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -a -c 'real-[k]ey-of-the-host'; ` +
		`grep -r -l -a -e 'real-[k]ey-of-the-host' "$HOME" . /etc /run 2>/dev/null; exit 0`
	paths := env.Primitive().Paths()
	found, err := primitives.Run(t.Context(), env.Primitive(), primitives.Command{Args: []string{"sh", "-c", search}, Env: []string{"HOME=" + paths.Home}}, primitives.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(found.Stdout))
	if cfg.Sandbox.Type == "docker" && (len(lines) != 1 || lines[0] != "0") || len(lines) > 1 {
		t.Errorf("the key is in the sandbox: %q, %s", lines, found.Stderr)
	}
	if whole := string(said) + transcript.Main; strings.Contains(whole, hostKey) || strings.Contains(whole, env.gate.at.Token) {
		t.Error("the key or the token is in an event or in the transcript")
	}
	if cfg.Sandbox.Type == "docker" {
		_, inspected, err := testdocker.Engine(t).ContainerInspectWithRaw(t.Context(), env.ID(), false)
		if err != nil || len(inspected) == 0 || bytes.Contains(inspected, []byte(hostKey)) || bytes.Contains(inspected, []byte(env.gate.at.Token)) {
			t.Errorf("the engine shows the key or the token: %v", err)
		}
	}
	known, err := recall(cfg.Sandbox.Type, env.ID())
	if data, _ := json.Marshal(known); err != nil || bytes.Contains(data, []byte(hostKey)) {
		t.Errorf("this machine has written the key down: %v", err)
	}
}

func TestCredentialsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Credential{"anthropic": {}, "b/d": {Env: "A"}, "soap": {Env: "A"}, "openai": {Env: "NO_SUCH_VARIABLE_HERE"}} {
		_, err := Create(t.Context(), Config{Sandbox: sandbox(t), Agent: Agent{Name: "script"}, Credentials: map[string]Credential{name: c}})
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTheGatewayIsWhereItWas: an agent that goes on in a kept sandbox uses the address and
// token of the program that has made it.
func TestTheGatewayIsWhereItWas(t *testing.T) {
	t.Setenv("TEST_HOST_KEY", hostKey)
	box := sandbox(t)
	cfg := Config{Sandbox: toKeep(box), Agent: Agent{Name: "script"}, Credentials: map[string]Credential{"anthropic": {Env: "TEST_HOST_KEY"}}}
	env := create(t, cfg)
	t.Cleanup(func() { _ = Remove(t.Context(), box, env.ID()) }) // create's own end may have come before
	was := *env.gate.at
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Sandbox = box
	again, err := Attach(t.Context(), cfg, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if is := *again.gate.at; is.URL != was.URL || is.Token != was.Token || !maps.Equal(is.APIs, was.APIs) {
		t.Errorf("it is at %+v, and was at %+v", is, was)
	}
	beside, err := Attach(t.Context(), cfg, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	if beside.gate.at.URL == was.URL {
		t.Error("two programs serve one address")
	}
	if err := again.Primitive().Close(); err != nil {
		t.Error(err)
	}
}
