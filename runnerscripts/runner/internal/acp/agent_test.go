package acp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

// agentVariable is the variable that makes the test binary an agent. Its value lists the agent's
// features.
const agentVariable = "ACP_TEST_AGENT"

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	if offers, ok := os.LookupEnv(agentVariable); ok {
		runAgent(offers)
		return
	}
	testleak.Main(m)
}

// testAgent is an ACP agent, built with the agent side of acp-go-sdk. The first word of a prompt
// selects what it does.
type testAgent struct {
	offers string
	conn   *acpsdk.AgentSideConnection
	out    io.Writer

	mu       sync.Mutex
	servers  []acpsdk.McpServer
	cancels  map[acpsdk.SessionId]context.CancelFunc
	mode     string
	model    string
	loggedIn bool
}

// lockedWriter keeps the lines of concurrent writers whole.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func runAgent(offers string) {
	out := &lockedWriter{w: os.Stdout}
	a := &testAgent{offers: offers, out: out, cancels: map[acpsdk.SessionId]context.CancelFunc{}}
	if a.has("v2") {
		fmt.Fprintln(os.Stderr, "this agent is of another version")
	}
	in, feed := io.Pipe()
	a.conn = acpsdk.NewAgentSideConnection(a, out, in)
	a.conn.SetLogger(slog.New(slog.DiscardHandler))
	_, err := io.Copy(feed, os.Stdin) // not before a.conn is set
	_ = feed.CloseWithError(err)
	<-a.conn.Done()
}

func (a *testAgent) has(offer string) bool {
	return slices.Contains(strings.Split(a.offers, ","), offer)
}

func (a *testAgent) Initialize(context.Context, acpsdk.InitializeRequest) (acpsdk.InitializeResponse, error) {
	r := acpsdk.InitializeResponse{
		ProtocolVersion: acpsdk.ProtocolVersionNumber,
		AgentInfo:       &acpsdk.Implementation{Name: "test-agent", Version: "1.2.3"},
		AuthMethods:     []acpsdk.AuthMethod{},
	}
	if a.has("v2") {
		r.ProtocolVersion = 2
	}
	r.AgentCapabilities.LoadSession = a.has("load")
	r.AgentCapabilities.McpCapabilities.Http = a.has("http")
	if a.has("resume") {
		r.AgentCapabilities.SessionCapabilities.Resume = &acpsdk.SessionResumeCapabilities{}
	}
	return r, nil
}

func (a *testAgent) Authenticate(_ context.Context, r acpsdk.AuthenticateRequest) (acpsdk.AuthenticateResponse, error) {
	if r.MethodId != "token" {
		return acpsdk.AuthenticateResponse{}, acpsdk.NewInvalidParams("no such method")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.loggedIn = true
	return acpsdk.AuthenticateResponse{}, nil
}

func (a *testAgent) NewSession(ctx context.Context, q acpsdk.NewSessionRequest) (acpsdk.NewSessionResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.servers = q.McpServers
	if a.has("explains") {
		mode := acpsdk.SessionCurrentModeUpdate{CurrentModeId: "auto"}
		return acpsdk.NewSessionResponse{}, cmp.Or(a.update(ctx, "", acpsdk.UpdateAgentMessageText("no disk")),
			a.update(ctx, "", acpsdk.SessionUpdate{CurrentModeUpdate: &mode}), error(acpsdk.NewInvalidParams(nil)))
	}
	if a.has("auth") && !a.loggedIn {
		return acpsdk.NewSessionResponse{}, acpsdk.NewAuthRequired(nil)
	}
	r := acpsdk.NewSessionResponse{SessionId: acpsdk.SessionId(fmt.Sprintf("session-%d", os.Getpid()))}
	r.Modes, r.Models, r.ConfigOptions = a.options()
	err := a.keep(r.SessionId, nil)
	if a.has("offers-first") {
		err = errors.Join(err, a.offer(ctx, r.SessionId))
	}
	if a.has("mode-first") {
		mode := acpsdk.SessionCurrentModeUpdate{CurrentModeId: r.Modes.CurrentModeId}
		err = errors.Join(err, a.update(ctx, r.SessionId, acpsdk.SessionUpdate{CurrentModeUpdate: &mode}))
	}
	return r, err
}

// offer reports the agent's commands.
func (a *testAgent) offer(ctx context.Context, id acpsdk.SessionId) error {
	commands := acpsdk.SessionAvailableCommandsUpdate{AvailableCommands: []acpsdk.AvailableCommand{{Name: "go"}}}
	return a.update(ctx, id, acpsdk.SessionUpdate{AvailableCommandsUpdate: &commands})
}

func (a *testAgent) options() (*acpsdk.SessionModeState, *acpsdk.SessionModelState, []acpsdk.SessionConfigOption) {
	first, second := "ask", "code"
	switch {
	case a.has("starts-auto"):
		first, second = "auto", "ask"
	case a.has("never-asks"):
		first, second = "build", "plan"
	}
	a.mode, a.model = cmp.Or(a.mode, first), cmp.Or(a.model, "small")
	var modes *acpsdk.SessionModeState
	var models *acpsdk.SessionModelState
	if a.has("modes") {
		modes = &acpsdk.SessionModeState{
			CurrentModeId: acpsdk.SessionModeId(first),
			AvailableModes: []acpsdk.SessionMode{
				{Id: acpsdk.SessionModeId(first), Name: first}, {Id: acpsdk.SessionModeId(second), Name: second},
			},
		}
		models = &acpsdk.SessionModelState{
			CurrentModelId:  "small",
			AvailableModels: []acpsdk.ModelInfo{{ModelId: "small", Name: "Small"}, {ModelId: "large", Name: "Large"}},
		}
	}
	if !a.has("config") {
		return modes, models, nil
	}
	selector := func(id, category, current, other string) acpsdk.SessionConfigOption {
		c := acpsdk.SessionConfigOptionCategory(category)
		return acpsdk.SessionConfigOption{Select: &acpsdk.SessionConfigOptionSelect{
			Type: "select", Id: acpsdk.SessionConfigId(id), Name: id, Category: &c, CurrentValue: acpsdk.SessionConfigValueId(current),
			Options: acpsdk.SessionConfigSelectOptions{Ungrouped: &acpsdk.SessionConfigSelectOptionsUngrouped{
				{Name: current, Value: acpsdk.SessionConfigValueId(current)}, {Name: other, Value: acpsdk.SessionConfigValueId(other)},
			}},
		}}
	}
	return modes, models, []acpsdk.SessionConfigOption{
		selector("the-mode", categoryMode, first, second), selector("the-model", categoryModel, "small", "large"),
	}
}

func (a *testAgent) SetSessionMode(ctx context.Context, r acpsdk.SetSessionModeRequest) (acpsdk.SetSessionModeResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mode = string(r.ModeId)
	if a.has("offers-with-mode") {
		return acpsdk.SetSessionModeResponse{}, a.offer(ctx, r.SessionId)
	}
	return acpsdk.SetSessionModeResponse{}, nil
}

func (a *testAgent) UnstableSetSessionModel(_ context.Context, r acpsdk.UnstableSetSessionModelRequest) (acpsdk.UnstableSetSessionModelResponse, error) {
	if r.ModelId == "none" {
		return acpsdk.UnstableSetSessionModelResponse{}, acpsdk.NewInvalidParams("no such model")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.model = string(r.ModelId)
	return acpsdk.UnstableSetSessionModelResponse{}, nil
}

func (a *testAgent) SetSessionConfigOption(_ context.Context, r acpsdk.SetSessionConfigOptionRequest) (acpsdk.SetSessionConfigOptionResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r.ValueId.ConfigId {
	case "the-mode":
		a.mode = string(r.ValueId.Value)
	case "the-model":
		a.model = string(r.ValueId.Value)
	}
	_, _, config := a.options()
	return acpsdk.SetSessionConfigOptionResponse{ConfigOptions: config}, nil
}

func (a *testAgent) LoadSession(ctx context.Context, r acpsdk.LoadSessionRequest) (acpsdk.LoadSessionResponse, error) {
	a.offered(r.McpServers)
	prompts, err := a.kept(r.SessionId)
	if err != nil {
		return acpsdk.LoadSessionResponse{}, err
	}
	for _, p := range prompts {
		err = errors.Join(err, a.update(ctx, r.SessionId, acpsdk.UpdateUserMessageText(p)))
		err = errors.Join(err, a.update(ctx, r.SessionId, acpsdk.UpdateAgentMessageText("an old answer")))
	}
	return acpsdk.LoadSessionResponse{}, err
}

func (a *testAgent) ResumeSession(_ context.Context, r acpsdk.ResumeSessionRequest) (acpsdk.ResumeSessionResponse, error) {
	a.offered(r.McpServers)
	_, err := a.kept(r.SessionId)
	return acpsdk.ResumeSessionResponse{}, err
}

func (a *testAgent) offered(servers []acpsdk.McpServer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.servers = servers
}

func (a *testAgent) CloseSession(context.Context, acpsdk.CloseSessionRequest) (acpsdk.CloseSessionResponse, error) {
	return acpsdk.CloseSessionResponse{}, nil
}

func (a *testAgent) ListSessions(context.Context, acpsdk.ListSessionsRequest) (acpsdk.ListSessionsResponse, error) {
	return acpsdk.ListSessionsResponse{}, nil
}

func (a *testAgent) Cancel(_ context.Context, n acpsdk.CancelNotification) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.cancels[n.SessionId]; cancel != nil {
		cancel()
	}
	return nil
}

// keep and kept write and read the agent's memory: the prompts of a session, in a file in its home.
func (a *testAgent) keep(id acpsdk.SessionId, prompts []string) error {
	file := filepath.Join(os.Getenv("HOME"), "test-agent", string(id))
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(strings.Join(prompts, "\n")), 0o600))
}

func (a *testAgent) kept(id acpsdk.SessionId) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), "test-agent", string(id)))
	if err != nil {
		return nil, acpsdk.NewInvalidParams("no such session")
	}
	if len(data) == 0 {
		return nil, nil
	}
	return strings.Split(string(data), "\n"), nil
}

func (a *testAgent) update(ctx context.Context, id acpsdk.SessionId, u acpsdk.SessionUpdate) error {
	return a.conn.SessionUpdate(ctx, acpsdk.SessionNotification{SessionId: id, Update: u})
}
