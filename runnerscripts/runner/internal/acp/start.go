package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// pauseTime is how long the agent may pause while the start waits for its updates.
const pauseTime = 3 * time.Second

// running returns the peer, and restarts it if it has ended.
func (c *conversation) running(ctx context.Context) (*peer, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	p, over := c.peer, c.over
	c.mu.Unlock()
	if over {
		return nil, agent.Closed()
	}
	if !p.ended() {
		return p, nil
	}
	p.Kill()
	p, _, err := c.start(ctx)
	if err == nil {
		c.updates.release()
	}
	return p, err
}

// start starts the program and its session, and waits until it can take a prompt. If it returns no
// error, the caller must release c.updates.
func (c *conversation) start(ctx context.Context) (p *peer, resumed bool, err error) {
	c.mu.Lock()
	model := c.model
	c.mu.Unlock()
	cmd, err := c.cfg.Launch(model)
	if err != nil {
		return nil, false, err
	}
	var h History
	if c.cfg.History != nil {
		if h, err = c.cfg.History(); err != nil {
			return nil, false, err
		}
	}
	c.translate.resume(h)
	c.updates.restart()
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return nil, false, agent.Closed()
	}
	p, err = c.dial(cmd)
	if err != nil {
		c.mu.Unlock()
		return nil, false, c.startFailure(err)
	}
	c.peer, c.loading, c.repeated, c.offered = p, h.SessionID != "", 0, false
	c.mu.Unlock()
	late := c.startFailure(fmt.Errorf("it was not ready within %v", c.cfg.StartTime))
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.StartTime, late)
	defer cancel()
	if err := c.open(ctx, p, h, cmd.Env); err != nil {
		if errors.Is(err, jsonrpc.ErrEnded) {
			p.Close() // ignore the error: the cause is how the program ended
			err = c.startFailure(errors.New(p.Crash()))
		}
		p.Kill()
		c.updates.dropModes() // no one has chosen the mode of a session that was not started
		c.updates.release()
		return nil, false, err
	}
	return p, h.SessionID != "", nil
}

func (c *conversation) startFailure(err error) error {
	return agent.Failed("check that the program in agent.command is %s for this platform: %v", c.cfg.Program, err)
}

// open performs the handshake and creates or loads the session. env is the agent's environment.
func (c *conversation) open(ctx context.Context, p *peer, h History, env []string) error {
	var err error
	p.init, err = call[acpsdk.InitializeResponse](ctx, p, acpsdk.AgentMethodInitialize, acpsdk.InitializeRequest{
		ProtocolVersion: acpsdk.ProtocolVersionNumber,
		ClientInfo:      &acpsdk.Implementation{Name: "agentenv", Version: "1"},
	})
	if err != nil {
		return c.refused(err, "check that the program in agent.command is an agent of ACP: %s answered: %s")
	}
	if v := p.init.ProtocolVersion; v != acpsdk.ProtocolVersionNumber {
		return agent.Failed("install a version of %s that speaks version %d of ACP: this one speaks version %d",
			c.cfg.Program, acpsdk.ProtocolVersionNumber, v)
	}
	name := c.cfg.Program
	if info := p.init.AgentInfo; info != nil {
		name, p.version = info.Name, info.Version
	}
	if m := c.cfg.AuthMethod; m != "" {
		_, err = call[acpsdk.AuthenticateResponse](ctx, p, acpsdk.AgentMethodAuthenticate, acpsdk.AuthenticateRequest{MethodId: m})
		if err != nil {
			return c.refused(err, "correct the log-in: %s answered: %s")
		}
	}
	if p.servers, err = c.mcpServers(p.init.AgentCapabilities.McpCapabilities, env); err != nil {
		return err
	}
	if h.SessionID == "" {
		err = c.newSession(ctx, p, name)
	} else {
		err = c.loadSession(ctx, p, h)
	}
	if err != nil {
		return err
	}
	if err := c.applyOptions(ctx, p); err != nil || !c.cfg.Offers {
		return err
	}
	return c.await(ctx, p.Done(), func() bool { return c.offered })
}

// newSession creates a session.
func (c *conversation) newSession(ctx context.Context, p *peer, name string) error {
	s, err := call[acpsdk.NewSessionResponse](ctx, p, acpsdk.AgentMethodSessionNew, acpsdk.NewSessionRequest{
		Cwd: c.cfg.Workspace, McpServers: p.servers,
	})
	if err != nil {
		return c.refused(err, "read why %s makes no session: %s")
	}
	p.session, p.options = s.SessionId, options{modes: s.Modes, models: s.Models, config: s.ConfigOptions}
	if c.cfg.Began != nil {
		return c.cfg.Began(string(s.SessionId), name, p.version)
	}
	return nil
}

// loadSession loads a session, if possible without the agent repeating the old conversation.
func (c *conversation) loadSession(ctx context.Context, p *peer, h History) error {
	p.session = acpsdk.SessionId(h.SessionID)
	const format = "see that the agent's own files are in this sandbox, or begin a new session: %s cannot go on: %s"
	caps := p.init.AgentCapabilities
	switch {
	case caps.SessionCapabilities.Resume != nil:
		s, err := call[acpsdk.ResumeSessionResponse](ctx, p, acpsdk.AgentMethodSessionResume, acpsdk.ResumeSessionRequest{
			SessionId: p.session, Cwd: c.cfg.Workspace, McpServers: p.servers,
		})
		if err != nil {
			return c.sessionNotFound(err, format)
		}
		p.options = options{modes: s.Modes, models: s.Models, config: s.ConfigOptions}
	case caps.LoadSession:
		s, err := call[acpsdk.LoadSessionResponse](ctx, p, acpsdk.AgentMethodSessionLoad, acpsdk.LoadSessionRequest{
			SessionId: p.session, Cwd: c.cfg.Workspace, McpServers: p.servers,
		})
		if err != nil {
			return c.sessionNotFound(err, format)
		}
		p.options = options{modes: s.Modes, models: s.Models, config: s.ConfigOptions}
		if err := c.await(ctx, p.Done(), func() bool { return c.repeated >= h.Updates }); err != nil {
			return err
		}
	default:
		return agent.Unsupported("begin a new session: %s cannot go on with a conversation "+
			"(it offers neither session/resume nor session/load)", c.cfg.Program)
	}
	c.mu.Lock()
	c.loading = false
	c.mu.Unlock()
	return nil
}

// await waits until the agent has sent the updates that it sends after a start, or pauses: some
// versions send fewer. It calls enough with c.mu held.
func (c *conversation) await(ctx context.Context, ended <-chan struct{}, enough func() bool) error {
	timer := time.NewTimer(pauseTime)
	defer timer.Stop()
	for {
		c.mu.Lock()
		complete := enough()
		c.mu.Unlock()
		if complete {
			return nil
		}
		select {
		case <-c.progress:
			timer.Reset(pauseTime)
		case <-timer.C:
			return nil
		case <-ended:
			return jsonrpc.ErrEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refused returns the error for a start that the agent refuses.
func (c *conversation) refused(err error, format string) error {
	rpc, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		return err
	}
	return c.failure(agent.Failed, format, rpc)
}

// authRequired is ACP's code for an agent that is not logged in.
const authRequired = -32000

// sessionNotFound returns the error for a session that the agent does not find.
func (c *conversation) sessionNotFound(err error, format string) error {
	rpc, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || rpc.Code == authRequired {
		return c.refused(err, format)
	}
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailSessionNotFound, Message: fmt.Sprintf(format, c.cfg.Program, words(rpc)),
	}
}

// raw emits a line of the agent, if raw events are enabled.
func (c *conversation) raw(line []byte) {
	if c.cfg.Query.Raw {
		c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeRaw, agent.RawLine(line))
	}
}

func (c *conversation) unreadable(line []byte, err error) {
	agent.EmitUnreadable(c.cfg.Out, c.cfg.Program, line, err)
}

// notified handles a notification. It runs on the reader's goroutine.
func (c *conversation) notified(method string, params json.RawMessage) {
	var n struct {
		SessionID string          `json:"sessionId"`
		Update    json.RawMessage `json:"update"`
	}
	var head struct {
		Kind string `json:"sessionUpdate"`
	}
	if strings.HasPrefix(method, "_") {
		return // an extension, which ACP allows clients to ignore
	}
	if method != acpsdk.ClientMethodSessionUpdate || json.Unmarshal(params, &n) != nil ||
		json.Unmarshal(n.Update, &head) != nil || head.Kind == "" {
		c.unreadable(params, fmt.Errorf("a notification %q of no known form", method))
		return
	}
	if isRunners(head.Kind) {
		c.unreadable(params, fmt.Errorf("an update %q, which is not the agent's to tell", head.Kind))
		return
	}
	u := Update{Kind: head.Kind, Raw: n.Update}
	if c.repeats(u) {
		return
	}
	if c.cfg.Translate != nil {
		u = c.cfg.Translate(u)
	}
	c.updates.report(u)
	if u.Kind == string(runnerscripts.TypeCommands) {
		c.mu.Lock()
		c.offered = true
		c.progressedLocked()
		c.mu.Unlock()
	}
}

// isRunners reports whether a kind of update has the name of an event that only the runner or
// the environment may emit, such as the end of a query.
func isRunners(kind string) bool {
	switch runnerscripts.EventType(kind) {
	case runnerscripts.TypePermissionRequest, runnerscripts.TypePermissionResolved,
		runnerscripts.TypeSessionInitialized, runnerscripts.TypeSessionIdle, runnerscripts.TypeOptionsChanged,
		runnerscripts.TypeLog, runnerscripts.TypeError, runnerscripts.TypeRaw, runnerscripts.TypeResult:
		return true
	}
	family, _, _ := strings.Cut(kind, "_")
	return slices.Contains([]string{"query", "environment", "file", "transcript", "subagent"}, family)
}

// said reports an update of the session.
func (c *conversation) said(u Update) {
	var err error
	if isMode(u) {
		var m runnerscripts.ModeUpdate
		if err = json.Unmarshal(u.Raw, &m); err == nil {
			c.agentMode(m.CurrentModeID)
		}
	} else {
		err = c.translate.update(u)
	}
	if err != nil {
		c.unreadable(u.Raw, err)
	}
}

// progressedLocked tells await that the agent has sent an update.
func (c *conversation) progressedLocked() {
	select {
	case c.progress <- struct{}{}:
	default:
	}
}

// repeats reports whether an update belongs to the old conversation of a loading session.
func (c *conversation) repeats(u Update) bool {
	switch runnerscripts.EventType(u.Kind) {
	case runnerscripts.TypeUserMessage, runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought,
		runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate, runnerscripts.TypePlan:
	default:
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loading {
		c.repeated++
		c.progressedLocked()
	}
	return c.loading
}
