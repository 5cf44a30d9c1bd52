package codex

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// threadReply is the reply to a request that opens a thread.
type threadReply struct {
	Thread struct {
		ID         string `json:"id"`
		CLIVersion string `json:"cliVersion"`
	} `json:"thread"`
	Model string `json:"model"`
}

// open prepares a started program for prompts: it opens the session's thread, or a new thread if
// the session has none.
func (c *conversation) open(ctx context.Context, p *jsonrpc.Peer) error {
	// The requests that end commands and change a running turn are experimental.
	hello := map[string]any{
		"clientInfo":   map[string]any{"name": "agentenv", "title": "agentenv", "version": "1"},
		"capabilities": map[string]any{"experimentalApi": true, "requestAttestation": false},
	}
	var server struct {
		UserAgent string `json:"userAgent"`
	}
	if err := p.Call(ctx, jsonrpc.Request{Method: "initialize", Params: hello, Result: &server}); err != nil {
		return openFailure(ctx, err)
	}
	_ = p.Notify("initialized", nil) // the next request reports a write error

	thread, resume, err := storedThread(c.session)
	if err != nil {
		return err
	}
	trusted, err := c.reviewed(ctx, p)
	if err != nil {
		return err
	}
	params, err := c.threadParams(trusted)
	if err != nil {
		return err
	}
	if _, ok := params["modelProvider"]; !ok {
		if err := loggedIn(ctx, p); err != nil {
			return err
		}
	}
	method := "thread/start"
	if resume {
		method = "thread/resume"
		params["threadId"], params["excludeTurns"] = thread, true
	}
	var reply threadReply
	opened := func() {
		c.mu.Lock()
		c.thread, c.usual = reply.Thread.ID, reply.Model
		c.toldMode, c.toldModel = "", ""
		c.mu.Unlock()
		c.handleQueued()
	}
	if err := p.Call(ctx, jsonrpc.Request{Method: method, Params: params, Result: &reply, Then: opened}); err != nil {
		return openFailure(ctx, err)
	}
	if !agent.IsUUID(reply.Thread.ID) {
		return agent.Failed("install Codex %s: the reply of this version to %s is not understood", testedVersion, method)
	}
	if err := storeThread(c.session, reply.Thread.ID); err != nil {
		return err
	}
	if !c.initialized {
		c.initialized = true
		c.mu.Lock()
		mode := c.mode
		c.mu.Unlock()
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionInitialized, runnerscripts.SessionInitialized{
			Agent: agentName, AgentVersion: agentVersion(server.UserAgent), Model: reply.Model, Mode: mode, Resumed: resume,
		})
		c.offerCommands()
	}
	return nil
}

// loggedIn returns an error if the program needs a login for its own provider and has none.
func loggedIn(ctx context.Context, p *jsonrpc.Peer) error {
	var reply struct {
		Account  json.RawMessage `json:"account"`
		Requires bool            `json:"requiresOpenaiAuth"`
	}
	if err := p.Call(ctx, jsonrpc.Request{Method: "account/read", Params: map[string]any{}, Result: &reply}); err != nil {
		return openFailure(ctx, err)
	}
	if reply.Requires && isNull(reply.Account) {
		return &runnerscripts.ScriptFailure{
			Code: runnerscripts.FailAPI, HTTPStatus: http.StatusUnauthorized,
			Message: "give the agent a key for the model's API, in its environment as " + envKey +
				", or a model_provider in agent.config: Codex is not logged in",
		}
	}
	return nil
}

// threadParams returns the parameters for opening a new or stored thread. trusted is the state of
// the hooks that may run.
func (c *conversation) threadParams(trusted map[string]any) (map[string]any, error) {
	config, err := settings(c.session, c.profile)
	if err != nil {
		return nil, err
	}
	if len(trusted) > 0 {
		merge(config, map[string]any{"hooks": map[string]any{"state": trusted}})
	}
	c.mu.Lock()
	model, id := c.model, c.mode
	c.mu.Unlock()
	m, err := findMode(id)
	if err != nil {
		return nil, err
	}
	params := map[string]any{
		"cwd": c.session.Paths.Workspace, "config": config, "approvalPolicy": m.approval, "sandbox": m.sandbox,
	}
	if model != "" {
		params["model"] = model
	}
	if s := c.session.Agent.SystemPrompt; s != "" {
		params["developerInstructions"] = s
	}
	// Without modelProvider, a resumed thread would keep its first provider.
	if provider, ok := config["model_provider"].(string); ok {
		params["modelProvider"] = provider
	}
	return params, nil
}

// openFailure returns the error for a program that did not become ready.
func openFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if _, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return agent.Failed("check agent.model and the settings in agent.config, and that the program is a Codex "+
			"in a version near %s: %v", testedVersion, err)
	}
	return startFailure(err)
}

// agentVersion returns the version in a user agent such as "agentenv/0.169.0 (Debian 12; x86_64)
// ...".
func agentVersion(userAgent string) string {
	first, _, _ := strings.Cut(userAgent, " ")
	_, v, _ := strings.Cut(first, "/")
	return v
}

func (c *conversation) log(level, text string, data json.RawMessage) {
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{Level: level, Message: text, Data: data})
}
