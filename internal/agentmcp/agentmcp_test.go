package agentmcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// callModel makes the test binary an agent that calls a model as often as it is prompted to; see agentCalls.
const callModel = "AGENTENV_TEST_CALL_MODEL"

var runnerBinary string

func TestMain(m *testing.M) {
	if os.Getenv(callModel) != "" {
		agentCalls()
		return
	}
	var err error
	if runnerBinary, err = bundle.Path(context.Background(), bundle.Config{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testleak.Main(m)
}

// parentScript is an agent that writes down what it gets, with its MCP servers, and works on while its prompt has the word
// "endless".
const parentScript = `IFS= read -r line; printf '%s' "$line" >invocation.json; case "$line" in *endless*) while :; do sleep 1; done;; *failing*) exit 3;; esac; echo done`

// rig is a host with a session whose agent may start others.
type rig struct {
	t      *testing.T
	host   *session.Host
	server *Server
	cfg    environment.Config
}

// newRig returns a rig. agents are the files of the agents by name.
func newRig(t *testing.T, agents map[string]string, change func(*environment.Config)) *rig {
	t.Helper()
	r := &rig{t: t, server: New(Config{Complete: func(cfg *environment.Config) { cfg.Runner = runnerBinary }})}
	delegates := map[string]environment.Delegate{}
	for name, text := range agents {
		file := filepath.Join(t.TempDir(), name+".yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		delegates[name] = environment.Delegate{Config: file, Description: "is " + name, Tags: []string{name, "all"}}
	}
	r.cfg = environment.Config{
		Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}},
		Agent:   environment.Agent{Name: "command", Command: []string{"sh", "-c", parentScript}},
		Runner:  runnerBinary, OnPermission: environment.AllowAll,
		Delegation: environment.Delegation{Agents: delegates}, AgentTools: r.server.Tools,
	}
	if change != nil {
		change(&r.cfg)
	}
	var err error
	r.host, err = session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: session.Config{Environment: environment.Config{AgentTools: r.server.Tools}}})
	if err != nil {
		t.Fatal(err)
	}
	r.server.Use(r.host)
	t.Cleanup(func() {
		if err := r.host.Shutdown(context.Background()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return r
}

// parent starts a session whose agent has its tools.
func (r *rig) parent() *session.AgentSession {
	r.t.Helper()
	s, err := r.host.Create(r.t.Context(), session.Config{Environment: r.cfg, Metadata: map[string]string{"owner": "ann"}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.converse(s, "write it down")
	return s
}

func (r *rig) converse(s *session.AgentSession, text string) {
	r.t.Helper()
	turn, err := s.Prompt(r.t.Context(), text)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := turn.Wait(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// access is how an agent reaches its tools.
type access struct {
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// accessOf returns how the agent of a session reaches its tools; without a URL if it has none.
func (r *rig) accessOf(s *session.AgentSession) access {
	r.t.Helper()
	file, err := s.OpenFile(r.t.Context(), "invocation.json")
	if err != nil {
		r.t.Fatal(err)
	}
	defer file.Close()
	var invocation struct {
		AgentBlueprint struct {
			Servers map[string]access `json:"mcp_servers"`
		} `json:"agent_blueprint"`
	}
	if err := json.NewDecoder(file).Decode(&invocation); err != nil {
		r.t.Fatal(err)
	}
	return invocation.AgentBlueprint.Servers[environment.AgentsServer]
}

// headers adds headers to requests.
type headers struct {
	values map[string]string
	http.RoundTripper
}

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h.values {
		r.Header.Set(name, value)
	}
	return h.RoundTripper.RoundTrip(r)
}

// connect connects a client of the protocol.
func (r *rig) connect(a access, opts *mcp.ClientOptions) (*mcp.ClientSession, error) {
	r.t.Helper()
	transport := &http.Transport{}
	r.t.Cleanup(transport.CloseIdleConnections)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	c, err := client.Connect(r.t.Context(), &mcp.StreamableClientTransport{
		Endpoint: a.URL, HTTPClient: &http.Client{Transport: headers{a.Headers, transport}}, DisableStandaloneSSE: true, MaxRetries: -1,
	}, nil)
	if err == nil {
		r.t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// client returns a client of the agent of a session.
func (r *rig) client(s *session.AgentSession) *mcp.ClientSession {
	r.t.Helper()
	c, err := r.connect(r.accessOf(s), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// call calls a tool that must succeed.
func call[T any](t *testing.T, c *mcp.ClientSession, tool string, args any) T {
	t.Helper()
	out, err := try[T](t, c, tool, args)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return out
}

// try calls a tool and returns its error in words.
func try[T any](t *testing.T, c *mcp.ClientSession, tool string, args any) (T, error) {
	t.Helper()
	var out T
	result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	text := result.Content[0].(*mcp.TextContent).Text
	if result.IsError {
		return out, errors.New(text)
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s: %v: %s", tool, err, text)
	}
	return out, nil
}

type args = map[string]any

// refused fails unless a tool refuses with these words.
func refused(t *testing.T, c *mcp.ClientSession, words, tool string, with any) {
	t.Helper()
	if _, err := try[report](t, c, tool, with); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v; it must say %q", tool, err, words)
	}
}

// The files of agents.
const (
	echo    = `agent: {name: script, config: {turns: [{steps: [{text: "prompt {{turn}}: {{prompt}}"}]}]}}`
	endless = `agent: {name: script, config: {turns: [{steps: [{text: "I begin."}, {delay_ms: 3600000}]}]}}`
	fails   = `agent: {name: script, config: {turns: [{steps: [{fail: {code: query, message: "it is beyond me"}}]}]}}`
	asks    = `agent: {name: script, config: {turns: [{steps: [{text: "I begin."}, {ask: {run: [touch, made]}}, {text: "over"}]}]}}`
)

func TestAnAgentStartsAnother(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo, "broken": echo}, nil)
	parent := r.parent()
	if err := os.WriteFile(r.cfg.Delegation.Agents["broken"].Config, []byte("agent: [1]"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := r.client(parent)
	list := call[blueprints](t, c, "list_agent_blueprints", nil).Blueprints
	if len(list) != 2 || list[1].Name != "echo" || list[1].Agent != "script" || list[1].Sandbox != "local" || list[0].Error == "" {
		t.Errorf("the agents are %+v", list)
	}
	got := call[report](t, c, "start_agent_session", args{"agent_blueprint_name": "echo", "prompt": "hi"})
	if got.Status != statusCompleted || got.Result != "prompt 1: hi" || !got.Sandbox || got.Agent != "echo" {
		t.Errorf("started: %+v", got)
	}
	rec, err := r.host.Store().Load(t.Context(), got.SessionID)
	if err != nil || rec.Metadata[metaParent] != parent.ID() || rec.Metadata["owner"] != "ann" {
		t.Errorf("its record: %+v, %v", rec.Metadata, err)
	}
	id := args{"session_id": got.SessionID}
	if got := call[report](t, c, "stop_agent_session", id); got.Sandbox || got.Status != statusCompleted || got.Result != "prompt 1: hi" {
		t.Errorf("stopped: %+v", got)
	}
	if r.host.Opened(got.SessionID) != nil {
		t.Error("it is open")
	}
	if got := call[report](t, c, "get_agent_session_result", id); got.Result != "prompt 1: hi" {
		t.Errorf("its result after its end: %+v", got)
	}
	if got := call[report](t, c, "resume_agent_session", args{"session_id": got.SessionID, "prompt": "again"}); got.Result != "prompt 2: again" {
		t.Errorf("resumed: %+v", got)
	}
	all := call[sessions](t, c, "list_agent_sessions", nil).Sessions
	if len(all) != 1 || all[0].SessionID != got.SessionID || all[0].Result != "" {
		t.Errorf("the sessions are %+v", all)
	}
	if n := call[deleted](t, c, "delete_all_agent_sessions", nil).Deleted; n != 1 {
		t.Errorf("%d are deleted", n)
	}
	refused(t, c, "no such session", "get_agent_session_status", id)
}

func TestAnAgentThatWorksOn(t *testing.T) {
	r := newRig(t, map[string]string{"endless": endless}, nil)
	c := r.client(r.parent())
	got := call[report](t, c, "start_agent_session", args{"agent_blueprint_name": "endless", "prompt": "hi", "mode": "async"})
	if got.Status != statusRunning {
		t.Errorf("started: %+v", got)
	}
	var kinds []string
	last := uint64(0)
	for !strings.Contains(strings.Join(kinds, " "), kindMessage) {
		next := call[followed](t, c, "follow_agent_session", args{"session_id": got.SessionID, "after_event": last})
		if next.Last <= last {
			t.Fatalf("nothing new after %d: %+v", last, next)
		}
		last = next.Last
		for _, l := range next.Lines {
			kinds = append(kinds, l.Kind)
		}
	}
	if kinds[0] != kindPrompt {
		t.Errorf("the events are %v", kinds)
	}
	if got := call[followed](t, c, "follow_agent_session", args{"session_id": got.SessionID, "after_event": last, "wait_seconds": 0}); len(got.Lines) > 0 || got.Status != statusRunning {
		t.Errorf("and then %+v", got)
	}
	if got := call[report](t, c, "get_agent_session_result", args{"session_id": got.SessionID, "wait_seconds": 0}); got.Status != statusRunning || got.Result != "" {
		t.Errorf("its result before the end: %+v", got)
	}
	if got := call[report](t, c, "stop_agent_session", args{"session_id": got.SessionID}); got.Status != statusInterrupted || got.Sandbox {
		t.Errorf("stopped: %+v", got)
	}
}

func TestWhatIsRefused(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo, "fails": fails, "kept": echo + "\nsandbox: {type: local, keep: true}"}, nil)
	c := r.client(r.parent())
	start := func(agent, prompt, mode string) args {
		return args{"agent_blueprint_name": agent, "prompt": prompt, "mode": mode}
	}
	refused(t, c, `no agent "nobody"`, "start_agent_session", start("nobody", "hi", "sync"))
	refused(t, c, "the prompt is empty", "start_agent_session", start("echo", "", "sync"))
	refused(t, c, "100001 characters", "start_agent_session", start("echo", strings.Repeat("ä", maxPrompt+1), "sync"))
	refused(t, c, `no mode "later"`, "start_agent_session", start("echo", "hi", "later"))
	for _, wait := range []int{601, 18_446_744_074} { // in nanoseconds the second one is small again
		refused(t, c, "give 0 to 600", "start_agent_session", args{"agent_blueprint_name": "echo", "prompt": "hi", "wait_seconds": wait})
	}
	refused(t, c, "it is beyond me", "start_agent_session", start("fails", "hi", "sync"))
	refused(t, c, "leave sandbox.keep and name out", "start_agent_session", start("kept", "hi", "sync"))
	refused(t, c, "no such session", "stop_agent_session", args{"session_id": "other"})
	if got := call[report](t, c, "start_agent_session", start("echo", strings.Repeat("ä", maxPrompt), "")); !strings.Contains(got.Result, "cut after 50000 of 100010 characters") {
		t.Errorf("a long result: %d bytes, %q", len(got.Result), got.Result[max(0, len(got.Result)-200):])
	}
}

// TestTwoSessions checks that the agent of one session has nothing of the other's.
func TestTwoSessions(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo}, nil)
	one, two := r.parent(), r.parent()
	mine := call[report](t, r.client(one), "start_agent_session", args{"agent_blueprint_name": "echo", "prompt": "hi"})
	c := r.client(two)
	for _, tool := range []string{"get_agent_session_status", "get_agent_session_result", "stop_agent_session", "follow_agent_session"} {
		refused(t, c, "no such session", tool, args{"session_id": mine.SessionID})
	}
	refused(t, c, "no such session", "resume_agent_session", args{"session_id": mine.SessionID, "prompt": "hi"})
	refused(t, c, "no such session", "get_agent_session_status", args{"session_id": one.ID()})
	if n := call[deleted](t, c, "delete_all_agent_sessions", nil).Deleted; n != 0 || r.host.Opened(mine.SessionID) == nil {
		t.Errorf("%d are deleted", n)
	}
	a, b := r.accessOf(one), r.accessOf(two)
	for name, status := range map[string]struct {
		access
		header, value string
		status        int
	}{
		"another session's token": {access{a.URL, b.Headers}, "", "", 403},
		"no token":                {access{a.URL, nil}, "", "", 401},
		"another session's ID":    {a, headerSession, two.ID(), 403},
		"its own ID":              {a, headerSession, one.ID(), 200},
		"demands":                 {a, headerDemands, `{"hostname":"x"}`, 400},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
		req, err := http.NewRequestWithContext(t.Context(), "POST", status.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if status.header != "" {
			req.Header.Set(status.header, status.value)
		}
		resp, err := headers{status.Headers, &http.Transport{DisableKeepAlives: true}}.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != status.status {
			t.Errorf("%s: %d %s", name, resp.StatusCode, said)
		}
	}
}

func TestTagsSelectAgents(t *testing.T) {
	r := newRig(t, map[string]string{"one": echo, "two": echo}, nil)
	a := r.accessOf(r.parent())
	a.Headers[headerTags] = "all, two"
	c, err := r.connect(a, nil)
	if err != nil {
		t.Fatal(err)
	}
	if list := call[blueprints](t, c, "list_agent_blueprints", nil).Blueprints; len(list) != 1 || list[0].Name != "two" {
		t.Errorf("the agents are %+v", list)
	}
	refused(t, c, "has not the tags", "start_agent_session", args{"agent_blueprint_name": "one", "prompt": "hi"})
}

func TestProgressIsReported(t *testing.T) {
	r := newRig(t, map[string]string{"asks": asks}, nil)
	heard := make(chan string, 100)
	c, err := r.connect(r.accessOf(r.parent()), &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, p *mcp.ProgressNotificationClientRequest) { heard <- p.Params.Message },
	})
	if err != nil {
		t.Fatal(err)
	}
	params := &mcp.CallToolParams{Name: "start_agent_session", Arguments: args{"agent_blueprint_name": "asks", "prompt": "hi"}}
	params.SetProgressToken("p")
	if result, err := c.CallTool(t.Context(), params); err != nil || result.IsError {
		t.Fatalf("%v, %+v", err, result)
	}
	for message := range heard {
		if message == "touch made" {
			break
		}
	}
}

// TestOverStdio serves a client as 'envctl mcp' does.
func TestOverStdio(t *testing.T) {
	r := newRig(t, map[string]string{"echo": echo, "endless": endless}, nil)
	ours, theirs := newPipes()
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(t.Context(), r.cfg, ours.in, ours.out) }()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	c, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: theirs.in, Writer: theirs.out}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tools, err := c.ListTools(t.Context(), nil); err != nil || len(tools.Tools) != 9 {
		t.Errorf("%d tools, %v", len(tools.Tools), err)
	}
	if got := call[report](t, c, "start_agent_session", args{"agent_blueprint_name": "echo", "prompt": "hi"}); got.Result != "prompt 1: hi" {
		t.Errorf("started: %+v", got)
	}
	got := call[report](t, c, "start_agent_session", args{"agent_blueprint_name": "endless", "prompt": "hi", "mode": "async"})
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if r.host.Opened(got.SessionID) != nil {
		t.Error("a session is open after its client has left")
	}
}

type pipes struct {
	in  io.ReadCloser
	out io.WriteCloser
}

func newPipes() (a, b pipes) {
	ar, bw := io.Pipe()
	br, aw := io.Pipe()
	return pipes{ar, aw}, pipes{br, bw}
}
