package environment

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// writeConfig writes a file into a new folder and returns its path.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestADelegationIsRead(t *testing.T) {
	t.Parallel()
	reviewer := writeConfig(t, "agent: script\n")
	name := writeConfig(t, `
agent: script
delegation:
  agents:
    short: `+reviewer+`
    long: {config: beside.yaml, description: Reviews, tags: [review]}
  depth: 2
`)
	cfg, err := LoadConfig(name)
	if err != nil {
		t.Fatal(err)
	}
	want := Delegation{Depth: 2, Agents: map[string]Delegate{
		"short": {Config: reviewer},
		"long":  {Config: filepath.Join(filepath.Dir(name), "beside.yaml"), Description: "Reviews", Tags: []string{"review"}},
	}}
	if !reflect.DeepEqual(cfg.Delegation, want) {
		t.Errorf("it is %+v", cfg.Delegation)
	}
	if child, err := cfg.Delegation.Load("short"); err != nil || child.Agent.Name != "script" {
		t.Errorf("the agent is %+v, %v", child.Agent, err)
	}
	next := cfg.Delegation.Next()
	if next.Depth != 1 || !next.Next().IsZero() {
		t.Errorf("the generations are %+v and %+v", next, next.Next())
	}
	if err := cfg.Delegation.Check(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "delegation.agents.long") {
		t.Errorf("without a file: %v", err)
	}
	data, err := FormatConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ParseConfig(data); err != nil || !reflect.DeepEqual(again.Delegation, want) {
		t.Errorf("written and read: %+v, %v", again.Delegation, err)
	}
}

func TestADelegationThatIsRefused(t *testing.T) {
	t.Parallel()
	const taken = "delegation: {agents: {a: x.yaml}}\nprofile: {mcp_servers: [{name: agents, url: http://x/y}]}"
	for text, want := range map[string]string{
		"delegation: {agents: {a b: x.yaml}}":          `"a b" is no name`,
		"delegation: {agents: {a: {}}}":                "delegation.agents.a: it has no config",
		"delegation: {agents: {a: x.yaml}, depth: -1}": "not negative",
		taken: "rename the profile's own",
	} {
		if _, err := ParseConfig([]byte("agent: script\n" + text)); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	nested := writeConfig(t, "agent: script\ndelegation: {agents: {a: x.yaml}}\n")
	_, err := Delegation{Agents: map[string]Delegate{"a": {Config: nested}}}.Load("a")
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "delegation.depth") {
		t.Errorf("nested: %v", err)
	}
	if _, err := (Delegation{}).Load("a"); !errors.Is(err, ErrConfig) {
		t.Errorf("unknown: %v", err)
	}
}

// noted are tools that note what happens to them.
type noted struct {
	http.Handler
	calls []string
}

func (n *noted) SetAllowHosts(hosts []string) { n.calls = append(n.calls, fmt.Sprint(hosts)) }
func (n *noted) Interrupt(context.Context)    { n.calls = append(n.calls, "interrupt") }
func (n *noted) Close() error                 { n.calls = append(n.calls, "close"); return nil }

// TestToolsLiveAsLongAsTheirEnvironment checks when the tools for other agents are called.
func TestToolsLiveAsLongAsTheirEnvironment(t *testing.T) {
	t.Parallel()
	tools := &noted{Handler: http.NotFoundHandler()}
	var of Delegator
	cfg := Config{
		Sandbox: sandbox(t), Agent: Agent{Name: "command", Command: []string{"sh", "-c", "cat >/dev/null; echo hi"}}, SessionID: "8b9a6a47-2b1b-4a51-9a9e-0d2a8a3a7b11",
		Delegation: Delegation{Agents: map[string]Delegate{"a": {Config: writeConfig(t, "agent: script\n")}}},
		AgentTools: func(_ context.Context, d Delegator) (AgentTools, error) { of = d; return tools, nil },
	}
	env := create(t, cfg)
	if of.Config.SessionID != cfg.SessionID || of.Meter != env.meter || of.Isolation != env.prim.Capabilities().Isolation {
		t.Errorf("the tools are of %+v", of)
	}
	servers := env.profile.MCPServers
	if len(servers) != 1 || servers[0].Name != AgentsServer || servers[0].URL != env.gate.At.URL+"/mcp" || len(env.cfg.Profile.MCPServers) != 0 {
		t.Errorf("the agent has the servers %+v", servers)
	}
	if strings.Contains(servers[0].Headers["Authorization"], env.gate.At.Token) {
		t.Error("the profile has the token, which the agent writes to a file")
	}
	if got := env.queries.Request().Agent.Env[tokenVariable]; got != env.gate.At.Token {
		t.Error("the agent has no token")
	}
	if _, err := env.Run(t.Context(), "Say hello"); err != nil {
		t.Fatal(err)
	}
	if len(tools.calls) != 0 {
		t.Errorf("after a query: %v", tools.calls)
	}
	for range env.ExecuteQuery(t.Context(), Query{Prompt: "Say hello"}) {
		break
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"interrupt", "close"}; !reflect.DeepEqual(tools.calls, want) {
		t.Errorf("at last: %v", tools.calls)
	}
}

// TestAnAgentWithoutHTTPServers checks that an agent that could not use the tools is refused before it starts.
func TestAnAgentWithoutHTTPServers(t *testing.T) {
	t.Parallel()
	cfg := Config{
		Sandbox: sandbox(t), Agent: Agent{Name: "script"},
		Delegation: Delegation{Agents: map[string]Delegate{"a": {Config: writeConfig(t, "agent: script\n")}}},
		AgentTools: func(context.Context, Delegator) (AgentTools, error) { return nil, errors.New("they fail") },
	}
	if err := cfg.Check(t.Context()); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "delegation") {
		t.Errorf("%v", err)
	}
	cfg.Agent = Agent{Name: "command", Command: []string{"cat"}}
	if _, err := Create(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "they fail") {
		t.Errorf("tools that fail: %v", err)
	}
}
