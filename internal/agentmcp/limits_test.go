package agentmcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// agentCalls is an agent that calls its model once, and says with which status that has answered.
func agentCalls() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	body := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	req, err := http.NewRequest("POST", os.Getenv("OPENAI_BASE_URL")+"/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("OPENAI_API_KEY"))
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body) // to its end, where the usage is counted
	}
	if err != nil {
		panic(err)
	}
	fmt.Println("the model answers", resp.StatusCode)
}

// model serves a model that uses 60 tokens for each call, and returns its credential.
func model(t *testing.T) map[string]environment.Credential {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"model":"m","choices":[],"usage":{"prompt_tokens":50,"completion_tokens":10,"total_tokens":60}}`)
	}))
	t.Cleanup(server.Close)
	return map[string]environment.Credential{"openai": {Command: []string{"echo", "the-key-of-the-host"}, URL: server.URL}}
}

// calls is the file of an agent that calls its model once for each prompt.
func calls() string {
	return fmt.Sprintf("agent: {name: command, command: [%s], env: {%s: '1'}}\n", os.Args[0], callModel)
}

// TestTheBudgetCountsForAll has an agent whose budget is used up by those that it starts.
func TestTheBudgetCountsForAll(t *testing.T) {
	credentials := model(t)
	r := newRig(t, map[string]string{"calls": calls(), "own keys": "agent: script"}, func(cfg *environment.Config) {
		delete(cfg.Delegation.Agents, "own keys")
		cfg.Credentials = credentials
		cfg.Budget.Session.Tokens = 100
	})
	r.server.cfg.Complete = func(cfg *environment.Config) { cfg.Runner, cfg.Credentials = runnerBinary, credentials }
	parent := r.parent()
	c := r.client(parent)
	for range 2 { // the second begins within the budget
		if got := call[report](t, c, "start_agent_session", args{"agent_blueprint_name": "calls", "prompt": "hi"}); got.Result != "the model answers 200" {
			t.Errorf("started: %+v", got)
		}
	}
	refused(t, c, "the session's budget of 100 tokens is used up", "start_agent_session", args{"agent_blueprint_name": "calls", "prompt": "hi"})
	if err := r.host.Unload(t.Context(), parent.ID()); err != nil {
		t.Fatal(err)
	}
	parent, err := r.host.Open(t.Context(), parent.ID())
	if err != nil {
		t.Fatal(err)
	}
	r.converse(parent, "once more")
	c = r.client(parent)
	refused(t, c, "the session's budget of 100 tokens is used up", "start_agent_session", args{"agent_blueprint_name": "calls", "prompt": "hi"})
	r.server.cfg.Complete = func(cfg *environment.Config) { cfg.Runner = runnerBinary }
	refused(t, c, "counted at the gateway", "start_agent_session", args{"agent_blueprint_name": "calls", "prompt": "hi"})
}

// TestTheBudgetCountsForRemovedAgents removes the sessions of started agents, in two generations: what they have used counts to
// the budget of the first agent when that is opened again.
func TestTheBudgetCountsForRemovedAgents(t *testing.T) {
	credentials := model(t)
	middle := fmt.Sprintf("agent: {name: command, command: [sh, -c, %q]}\n", parentScript)
	r := newRig(t, map[string]string{"calls": calls(), "middle": middle}, func(cfg *environment.Config) {
		cfg.Credentials, cfg.Delegation.Depth = credentials, 2
		cfg.Budget.Session.Tokens = 100
	})
	r.server.cfg.Complete = func(cfg *environment.Config) { cfg.Runner, cfg.Credentials = runnerBinary, credentials }
	start := func(c *mcp.ClientSession, agent string) report {
		return call[report](t, c, "start_agent_session", args{"agent_blueprint_name": agent, "prompt": "hi"})
	}
	for name, remove := range map[string]func(c *mcp.ClientSession, id string){
		"by the agent":         func(c *mcp.ClientSession, _ string) { call[deleted](t, c, "delete_all_agent_sessions", nil) },
		"from the store":       func(_ *mcp.ClientSession, id string) { remove(t, r, id) },
		"without their parent": nil,
	} {
		t.Run(name, func(t *testing.T) {
			parent := r.parent()
			c := r.client(parent)
			between := start(c, "middle")
			inner, err := r.connect(r.accessOf(r.host.Opened(between.SessionID)), nil)
			if err != nil {
				t.Fatal(err)
			}
			one, two := start(inner, "calls"), start(inner, "calls")
			if remove == nil {
				remove = func(_ *mcp.ClientSession, id string) {
					for _, id := range []string{one.SessionID, id, two.SessionID} {
						if err := r.host.Destroy(t.Context(), id); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			remove(c, between.SessionID)
			if err := r.host.Unload(t.Context(), parent.ID()); err != nil {
				t.Fatal(err)
			}
			if parent, err = r.host.Open(t.Context(), parent.ID()); err != nil {
				t.Fatal(err)
			}
			r.converse(parent, "once more")
			refused(t, r.client(parent), "the session's budget of 100 tokens is used up", "start_agent_session",
				args{"agent_blueprint_name": "calls", "prompt": "hi"})
			if rec, err := r.host.Store().Load(t.Context(), parent.ID()); err != nil || rec.Delegated.TotalInput()+rec.Delegated.OutputTokens != 120 {
				t.Errorf("the usage of removed agents is %+v, %v", rec.Delegated, err)
			}
		})
	}
}

// remove removes a session as 'envctl sessions rm' does.
func remove(t *testing.T, r *rig, id string) {
	t.Helper()
	if err := r.host.Unload(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := session.Remove(t.Context(), r.host.Store(), id); err != nil {
		t.Fatal(err)
	}
}

// TestPermissionsHoldForAll has agents that may not touch files, for any of the reasons that there are: those that they start may
// not either, also when these are opened by their ID alone.
func TestPermissionsHoldForAll(t *testing.T) {
	credentials := model(t) // an agent that cannot ask has its calls held there
	denied := permission.Rules{Mode: "auto", Deny: []string{"Bash(touch *)"}}
	for name, limit := range map[string]func(*environment.Config){
		"permissions": func(cfg *environment.Config) { cfg.Permissions = denied },
		"profile": func(cfg *environment.Config) {
			cfg.Permissions.Mode, cfg.Profile.Permissions = "auto", runnerscripts.ProfilePermissions{Deny: denied.Deny}
		},
		"limits":    func(cfg *environment.Config) { cfg.PermissionLimits = denied },
		"no allow":  func(cfg *environment.Config) { cfg.Permissions.Allow = []string{"Bash(make *)"} },
		"allowed":   func(cfg *environment.Config) { cfg.Permissions.Allow = denied.Deny },
		"only asks": func(cfg *environment.Config) { cfg.PermissionLimits.Mode = "auto" },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, map[string]string{"asks": asks + "\npermissions: {mode: auto, allow: ['Bash(touch *)']}"}, func(cfg *environment.Config) {
				cfg.Credentials, cfg.OnPermission, cfg.Session.User = credentials, environment.RejectAll, "ann"
				limit(cfg)
			})
			got := call[report](t, r.client(r.parent()), "start_agent_session", args{"agent_blueprint_name": "asks", "prompt": "hi"})
			if _, err := r.host.Opened(got.SessionID).OpenFile(t.Context(), "made"); (err == nil) != (name == "allowed") {
				t.Errorf("the file that it may not touch: %v", err)
			}
			if err := r.host.Unload(t.Context(), got.SessionID); err != nil {
				t.Fatal(err)
			}
			again, err := r.host.OpenAs(t.Context(), got.SessionID, func(cfg *session.Config) {
				if cfg.Environment.Session.User != "ann" {
					t.Errorf("its user is %q", cfg.Environment.Session.User)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			r.converse(again, "again")
			if _, err := again.OpenFile(t.Context(), "made"); (err == nil) != (name == "allowed") {
				t.Errorf("opened again, the file that it may not touch: %v", err)
			}
		})
	}
}

// TestTheUserOfAllAnswers checks that requests of a started agent come to the same user.
func TestTheUserOfAllAnswers(t *testing.T) {
	asked := make(chan string, 1)
	r := newRig(t, map[string]string{"asks": asks}, func(cfg *environment.Config) {
		cfg.OnPermission = func(_ context.Context, req environment.PermissionRequest) environment.PermissionDecision {
			asked <- req.ToolCall.Title
			return req.Allow()
		}
	})
	c := r.client(r.parent())
	got := call[report](t, c, "start_agent_session", args{"agent_blueprint_name": "asks", "prompt": "hi"})
	if title := <-asked; title != "touch made" || got.Result != "over" {
		t.Errorf("asked %q, and then %+v", title, got)
	}
}

func TestASandboxReachesNoMore(t *testing.T) {
	shut := environment.Sandbox{Spec: primitives.Spec{Network: "none"}, AllowHosts: []string{"a.test"}}
	for _, c := range []struct {
		parent, own environment.Sandbox
		want        string // empty means that it may
	}{
		{environment.Sandbox{}, environment.Sandbox{Spec: primitives.Spec{Network: "bridge"}}, ""},
		{shut, environment.Sandbox{}, ""},
		{shut, environment.Sandbox{AllowHosts: []string{"a.test"}}, ""},
		{shut, environment.Sandbox{AllowHosts: []string{"b.test"}}, "b.test"},
		{shut, environment.Sandbox{Spec: primitives.Spec{Network: "bridge"}}, `"bridge" is more`},
	} {
		err := within(c.parent, &c.own)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.own, err)
		}
		if c.parent.Network == "none" && c.want == "" && c.own.Network != "none" {
			t.Errorf("its network is %q", c.own.Network)
		}
	}
}

// What an agent may no longer reach is not for those that it starts afterwards.
func TestHostsThatAreNoLongerAllowed(t *testing.T) {
	r := newRig(t, map[string]string{"reads": echo + "\nsandbox: {type: local, network: none, allow_hosts: [a.test]}\n", "like": echo}, func(cfg *environment.Config) {
		cfg.Sandbox.Network, cfg.Sandbox.AllowHosts = "none", []string{"a.test"}
	})
	f, err := r.server.newFamily(t.Context(), environment.Delegator{Config: r.cfg, Meter: environment.NewMeter(environment.Budget{})}, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.configure("reads"); err != nil {
		t.Errorf("before: %v", err)
	}
	f.SetAllowHosts([]string{"b.test"})
	if _, err := f.configure("reads"); err == nil || !strings.Contains(err.Error(), "may not reach a.test") {
		t.Errorf("afterwards: %v", err)
	}
	if cfg, err := f.configure("like"); err != nil || !slices.Equal(cfg.Sandbox.AllowHosts, []string{"b.test"}) {
		t.Errorf("one without hosts of its own: %q, %v", cfg.Sandbox.AllowHosts, err)
	}
}

func TestOnlySoManyAtOnce(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo}, func(cfg *environment.Config) { cfg.Delegation.Max = 1 })
	c := r.client(r.parent())
	start := args{"agent_blueprint_name": "echo", "prompt": "hi"}
	one := call[report](t, c, "start_agent_session", start)
	refused(t, c, "stop_agent_session", "start_agent_session", start)
	call[report](t, c, "stop_agent_session", args{"session_id": one.SessionID})
	call[report](t, c, "start_agent_session", start)
	refused(t, c, "stop_agent_session", "resume_agent_session", args{"session_id": one.SessionID, "prompt": "hi"})
}

// TestGenerations has agents that could start the same again, and may do so once.
func TestGenerations(t *testing.T) {
	middle := fmt.Sprintf("agent: {name: command, command: [sh, -c, %q]}\n", parentScript)
	r := newRig(t, map[string]string{"middle": middle, "echo": echo}, func(cfg *environment.Config) { cfg.Delegation.Depth = 2 })
	c := r.client(r.parent())
	for generation := range 2 {
		got := call[report](t, c, "start_agent_session", args{"agent_blueprint_name": "middle", "prompt": "hi"})
		a := r.accessOf(r.host.Opened(got.SessionID))
		if generation == 1 {
			if a.URL != "" {
				t.Errorf("the third generation has tools at %s", a.URL)
			}
			return
		}
		var err error
		if c, err = r.connect(a, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAStoredAgentGoesOn opens everything again: the agent has its earlier sessions, and their limits hold.
func TestAStoredAgentGoesOn(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo}, func(cfg *environment.Config) { cfg.Delegation.Max = 1 })
	parent := r.parent()
	got := call[report](t, r.client(parent), "start_agent_session", args{"agent_blueprint_name": "echo", "prompt": "hi"})
	if err := r.host.Unload(t.Context(), parent.ID()); err != nil {
		t.Fatal(err)
	}
	again, err := r.host.OpenAs(t.Context(), parent.ID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.converse(again, "once more")
	c := r.client(again)
	if all := call[sessions](t, c, "list_agent_sessions", nil).Sessions; len(all) != 1 || all[0].Sandbox {
		t.Errorf("the sessions are %+v", all)
	}
	if got := call[report](t, c, "resume_agent_session", args{"session_id": got.SessionID, "prompt": "again"}); got.Result != "prompt 2: again" {
		t.Errorf("resumed: %+v", got)
	}
	refused(t, c, "stop_agent_session", "start_agent_session", args{"agent_blueprint_name": "echo", "prompt": "hi"})
}

// TestRulesOfTheNextProgramHold opens the session of an agent again with another rule, which holds for those that it has started
// before, too.
func TestRulesOfTheNextProgramHold(t *testing.T) {
	credentials := model(t)
	r := newRig(t, map[string]string{"asks": asks}, func(cfg *environment.Config) { cfg.Credentials = credentials })
	parent := r.parent()
	got := call[report](t, r.client(parent), "start_agent_session", args{"agent_blueprint_name": "asks", "prompt": "hi"})
	if err := r.host.Unload(t.Context(), parent.ID()); err != nil {
		t.Fatal(err)
	}
	again, err := r.host.OpenAs(t.Context(), parent.ID(), func(cfg *session.Config) {
		cfg.Environment.Permissions.Deny = []string{"Bash(touch *)"}
		cfg.Environment.OnPermission = environment.AllowAll
	})
	if err != nil {
		t.Fatal(err)
	}
	r.converse(again, "once more")
	if got := call[report](t, r.client(again), "resume_agent_session", args{"session_id": got.SessionID, "prompt": "hi"}); got.Status != statusCompleted {
		t.Errorf("resumed: %+v", got)
	}
	denied := false
	for ev, err := range r.host.Store().Events(t.Context(), got.SessionID, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := ev.Value().(*runnerscripts.PermissionResolved); ok && p.Reason == runnerscripts.ReasonRule {
			denied = true
		}
	}
	if !denied {
		t.Error("the rule does not hold")
	}
}

// TestAStoredAgentGoesOnWithoutFiles opens a session again after the file of an agent was removed: only that agent cannot be
// started.
func TestAStoredAgentGoesOnWithoutFiles(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo}, nil)
	parent := r.parent()
	if err := r.host.Unload(t.Context(), parent.ID()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.cfg.Delegation.Agents["echo"].Config); err != nil {
		t.Fatal(err)
	}
	again, err := r.host.Open(t.Context(), parent.ID())
	if err != nil {
		t.Fatal(err)
	}
	r.converse(again, "once more")
	c := r.client(again)
	if list := call[blueprints](t, c, "list_agent_blueprints", nil).Blueprints; len(list) != 1 || list[0].Error == "" {
		t.Errorf("the agents are %+v", list)
	}
	refused(t, c, "delegation.agents.echo", "start_agent_session", args{"agent_blueprint_name": "echo", "prompt": "hi"})
}

// TestLessIsolationIsRefused has a file that puts an agent where the one that starts it is not.
func TestLessIsolationIsRefused(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo}, nil)
	f, err := r.server.newFamily(t.Context(), environment.Delegator{Config: r.cfg, Meter: environment.NewMeter(environment.Budget{}), Isolation: primitives.IsolationFull}, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := f.start(t.Context(), "echo", "hi")
	if err != nil {
		t.Fatal(err)
	}
	f.await(t.Context(), c, time.Minute, func(string) {})
	if got, err := f.report(t.Context(), c.session.ID(), "echo", true); err != nil || got.Status != statusFailed || !strings.Contains(got.Error, "isolation") {
		t.Errorf("it is %+v, %v", got, err)
	}
}
