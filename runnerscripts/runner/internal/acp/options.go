package acp

import (
	"context"
	"errors"
	"slices"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// options are the modes and models of a session. An agent reports them in their own fields or
// as configuration options.
type options struct {
	modes  *acpsdk.SessionModeState
	models *acpsdk.SessionModelState
	config []acpsdk.SessionConfigOption
}

// The categories of configuration options.
const (
	categoryMode  = "mode"
	categoryModel = "model"
)

// mode returns the initial mode of the session.
func (o options) mode() string {
	if o.modes != nil {
		return string(o.modes.CurrentModeId)
	}
	if s := o.selector(categoryMode); s != nil {
		return string(s.CurrentValue)
	}
	return ""
}

// model returns the initial model of the session.
func (o options) model() string {
	if o.models != nil {
		return string(o.models.CurrentModelId)
	}
	if s := o.selector(categoryModel); s != nil {
		return string(s.CurrentValue)
	}
	return ""
}

// modelList returns the available models.
func (o options) modelList() []runnerscripts.Model {
	var list []runnerscripts.Model
	if o.models != nil {
		for _, m := range o.models.AvailableModels {
			list = append(list, runnerscripts.Model{ID: string(m.ModelId), Name: m.Name})
		}
		return list
	}
	if s := o.selector(categoryModel); s != nil && s.Options.Ungrouped != nil {
		for _, m := range *s.Options.Ungrouped {
			list = append(list, runnerscripts.Model{ID: string(m.Value), Name: m.Name})
		}
	}
	return list
}

// selector returns the configuration option of a category.
func (o options) selector(category string) *acpsdk.SessionConfigOptionSelect {
	for _, opt := range o.config {
		if s := opt.Select; s != nil && s.Category != nil && string(*s.Category) == category {
			return s
		}
	}
	return nil
}

// askingModes are the IDs of modes known to ask before the agent acts, in the adapters for
// Claude Code and Codex, and in Gemini CLI.
var askingModes = []string{"default", "ask", "manual", "read-only"}

// modeThatAsks returns the mode for a session without a chosen one: empty if the agent's mode
// already asks, or the agent has no modes.
func (c *conversation) modeThatAsks(o options) (string, error) {
	names := o.modeNames()
	if len(names) == 0 || slices.Contains(askingModes, o.mode()) {
		return "", nil
	}
	for _, mode := range askingModes {
		if slices.Contains(names, mode) {
			return mode, nil
		}
	}
	return "", agent.Invalid("no mode is chosen, and %s starts in %q, which may act without asking; leave permissions out, and set agent.permission_mode to one of its modes: %v",
		c.cfg.Program, o.mode(), names)
}

// hasMode reports whether a mode is available. It returns true if the agent does not list its
// modes, or lists them as a configuration option.
func (o options) hasMode(mode string) bool {
	return o.modes == nil || slices.ContainsFunc(o.modes.AvailableModes, func(m acpsdk.SessionMode) bool {
		return string(m.Id) == mode
	})
}

// modeNames returns the available modes.
func (o options) modeNames() []string {
	var names []string
	if o.modes != nil {
		for _, m := range o.modes.AvailableModes {
			names = append(names, string(m.Id))
		}
		return names
	}
	s := o.selector(categoryMode)
	if s == nil {
		return nil
	}
	if list := s.Options.Ungrouped; list != nil {
		for _, m := range *list {
			names = append(names, string(m.Value))
		}
	}
	if groups := s.Options.Grouped; groups != nil {
		for _, g := range *groups {
			for _, m := range g.Options {
				names = append(names, string(m.Value))
			}
		}
	}
	return names
}

// applyOptions sets the user's mode and model at each start. The default mode is one that asks.
func (c *conversation) applyOptions(ctx context.Context, p *peer) error {
	c.mu.Lock()
	mode, model := c.mode, c.model
	c.mu.Unlock()
	if mode == "" {
		var err error
		if mode, err = c.modeThatAsks(p.options); err != nil {
			return err
		}
		c.noteMode(mode)
	}
	if mode != "" {
		if err := c.applyMode(ctx, p, mode); err != nil {
			return err
		}
	}
	if model != "" && !c.cfg.ModelAtLaunch && model != p.options.model() {
		return c.applyModel(ctx, p, model)
	}
	return nil
}

// applyMode sets a mode. For a mode that the driver implements, it sets the underlying mode.
func (c *conversation) applyMode(ctx context.Context, p *peer, mode string) error {
	if below, own := c.cfg.Modes[mode]; own {
		mode = below
	}
	if !p.options.hasMode(mode) {
		return agent.Invalid("choose a mode that %s offers (%v): it has no mode %q", c.cfg.Program, p.options.modeNames(), mode)
	}
	if p.options.modes != nil {
		err := p.Call(ctx, jsonrpc.Request{
			Method: acpsdk.AgentMethodSessionSetMode,
			Params: acpsdk.SetSessionModeRequest{SessionId: p.session, ModeId: acpsdk.SessionModeId(mode)},
			Result: new(acpsdk.SetSessionModeResponse),
			Then:   c.updates.dropModes, // a mode after the reply is a change
		})
		return c.unset(p, err, p.options.modeNames())
	}
	return c.applySelector(ctx, p, categoryMode, mode, p.options.modeNames(), c.updates.dropModes)
}

func (c *conversation) applyModel(ctx context.Context, p *peer, model string) error {
	if p.options.models != nil {
		_, err := call[acpsdk.UnstableSetSessionModelResponse](ctx, p, acpsdk.AgentMethodSessionSetModel,
			acpsdk.UnstableSetSessionModelRequest{SessionId: p.session, ModelId: acpsdk.UnstableModelId(model)})
		return c.unset(p, err, nil)
	}
	return c.applySelector(ctx, p, categoryModel, model, nil, nil)
}

// applySelector sets a configuration option. offered are its values, for an error; it may be empty.
// It calls then, if not nil, after a successful reply, before the next message of the agent.
func (c *conversation) applySelector(ctx context.Context, p *peer, category, value string, offered []string, then func()) error {
	s := p.options.selector(category)
	if s == nil {
		return agent.Unsupported("leave the %s out: %s offers no choice of it", category, c.cfg.Program)
	}
	err := p.Call(ctx, jsonrpc.Request{
		Method: acpsdk.AgentMethodSessionSetConfigOption,
		Params: acpsdk.SetSessionConfigOptionRequest{ValueId: &acpsdk.SetSessionConfigOptionValueId{
			SessionId: p.session, ConfigId: s.Id, Value: acpsdk.SessionConfigValueId(value),
		}},
		Result: new(acpsdk.SetSessionConfigOptionResponse),
		Then:   then,
	})
	return c.unset(p, err, offered)
}

// unset returns the error for a rejected value. It names those that are offered, if there are any.
func (c *conversation) unset(p *peer, err error, offered []string) error {
	if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok {
		if len(offered) > 0 {
			return agent.Invalid("choose one of %v: %s: %s", offered, c.cfg.Program, words(rpc))
		}
		return agent.Invalid("ask %s for something that it offers: %s", c.cfg.Program, words(rpc))
	}
	if errors.Is(err, jsonrpc.ErrEnded) {
		return p.crash(c.cfg.Program)
	}
	return err
}

// SetMode changes the permission mode.
func (c *conversation) SetMode(ctx context.Context, mode string) error {
	p, err := c.running(ctx)
	if err != nil {
		return err
	}
	// Store the mode first, so that the agent's notification is not reported as a change.
	before := c.noteMode(mode)
	if err := c.applyMode(ctx, p, mode); err != nil {
		c.noteMode(before)
		return err
	}
	if mode != before {
		c.tellMode(mode)
	}
	return nil
}

// SetModel changes the model.
func (c *conversation) SetModel(ctx context.Context, model string) error {
	if model == "" {
		return agent.Invalid("name the model that shall be used")
	}
	p, err := c.running(ctx)
	if err != nil {
		return err
	}
	if err := c.applyModel(ctx, p, model); err != nil {
		return err
	}
	c.mu.Lock()
	c.model = model
	c.mu.Unlock()
	c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeOptionsChanged, runnerscripts.OptionsChanged{Model: model})
	return nil
}

// noteMode stores the current mode and returns the previous one.
func (c *conversation) noteMode(mode string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.mode
	c.mode = mode
	return before
}

func (c *conversation) tellMode(mode string) {
	c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeModeUpdate, runnerscripts.ModeUpdate{CurrentModeID: mode})
}

// agentMode handles a mode change by the agent. It ignores the underlying mode of a mode that
// the driver implements.
func (c *conversation) agentMode(mode string) {
	c.mu.Lock()
	below, kept := c.cfg.Modes[c.mode]
	news := mode != "" && mode != c.mode && (!kept || below != mode)
	if news {
		c.mode = mode
	}
	c.mu.Unlock()
	if news {
		c.tellMode(mode)
	}
}
