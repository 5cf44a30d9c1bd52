package acpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// The options that a client can set.
const (
	optionMode  = "mode"
	optionModel = "model"
)

// choices are what the user can choose in a session, and what is chosen.
type choices struct {
	mu          sync.Mutex
	all         []string // modes; nil if they are unknown
	mode, model string
	models      []runnerscripts.Model
	news        bool // the client does not know all of it
}

// begin sets the choices of an opened session.
func (c *choices) begin(modes []string, state session.State, cfg session.Config) {
	agent := cfg.Environment.Agent
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mode = cmp.Or(state.Options.Mode, state.Mode, agent.PermissionMode)
	c.model = cmp.Or(state.Options.Model, state.Model, agent.Model)
	if state.Environment.Status == session.EnvironmentReady { // the agent says what holds
		c.mode, c.model = cmp.Or(state.Mode, c.mode), cmp.Or(state.Model, c.model)
	}
	c.all, c.models = nil, state.Models
	if len(modes) > 0 && len(cfg.Environment.Rules()) == 0 { // rules decide instead of a mode
		c.mode = cmp.Or(c.mode, modes[0])
		c.all = including(modes, c.mode) // the agent checks it
	}
}

// including returns a list with a value, which may be in it.
func including(list []string, value string) []string {
	if slices.Contains(list, value) {
		return list
	}
	return append(slices.Clone(list), value)
}

// offers returns an error if the client cannot choose a mode.
func (c *choices) offers(mode string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mode == "" || len(c.all) > 0 && !slices.Contains(c.all, mode) {
		return Invalid("the agent has no mode %q; choose one of %s", mode, strings.Join(c.all, ", "))
	}
	return nil
}

// set sets the values that are not empty, and reports whether the mode is new.
func (c *choices) set(mode, model string, models []runnerscripts.Model) (newMode bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newMode = mode != "" && mode != c.mode
	if newMode || model != "" && model != c.model || models != nil && !slices.Equal(models, c.models) {
		c.news = true
	}
	c.mode, c.model = cmp.Or(mode, c.mode), cmp.Or(model, c.model)
	if models != nil {
		c.models = models
	}
	return newMode
}

// update returns the update for what is new since the client got the options.
func (c *choices) update() (acp.SessionUpdate, bool) {
	c.mu.Lock()
	news := c.news
	c.mu.Unlock()
	if !news {
		return acp.SessionUpdate{}, false
	}
	options := c.options()
	return acp.SessionUpdate{ConfigOptionUpdate: &acp.SessionConfigOptionUpdate{ConfigOptions: options}}, len(options) > 0
}

// modes returns the modes that the client may choose from; nil if they are unknown.
func (c *choices) modes() *acp.SessionModeState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) == 0 {
		return nil
	}
	state := &acp.SessionModeState{CurrentModeId: acp.SessionModeId(c.mode)}
	for _, id := range c.all {
		state.AvailableModes = append(state.AvailableModes, acp.SessionMode{Id: acp.SessionModeId(id), Name: id})
	}
	return state
}

// options returns the options whose values are known, for the client.
func (c *choices) options() []acp.SessionConfigOption {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news = false
	var list []acp.SessionConfigOption
	if len(c.all) > 0 {
		var modes acp.SessionConfigSelectOptionsUngrouped
		for _, id := range including(c.all, c.mode) {
			modes = append(modes, acp.SessionConfigSelectOption{Name: id, Value: acp.SessionConfigValueId(id)})
		}
		list = append(list, option(optionMode, "Permission mode", c.mode, modes))
	}
	if len(c.models) > 0 && c.model != "" {
		var models acp.SessionConfigSelectOptionsUngrouped
		known := false
		for _, m := range c.models {
			known = known || m.ID == c.model
			models = append(models, acp.SessionConfigSelectOption{Name: cmp.Or(m.Name, m.ID), Value: acp.SessionConfigValueId(m.ID)})
		}
		if !known {
			models = append(models, acp.SessionConfigSelectOption{Name: c.model, Value: acp.SessionConfigValueId(c.model)})
		}
		list = append(list, option(optionModel, "Model", c.model, models))
	}
	return list
}

// option returns an option, whose category is its name.
func option(id, name, value string, values acp.SessionConfigSelectOptionsUngrouped) acp.SessionConfigOption {
	category := acp.SessionConfigOptionCategory(id)
	return acp.SessionConfigOption{Select: &acp.SessionConfigOptionSelect{
		Type: "select", Id: acp.SessionConfigId(id), Name: name, Category: &category,
		CurrentValue: acp.SessionConfigValueId(value), Options: acp.SessionConfigSelectOptions{Ungrouped: &values},
	}}
}

// setOptions sets options of a session, which its log then has.
func (c *conversation) setOptions(life context.Context, o session.Options) error {
	agent, _, err := c.attach(life)
	if err != nil {
		return err
	}
	return agent.SetOptions(life, o)
}

func (s *server) setMode(_ context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.SetSessionModeRequest](params)
	if err != nil {
		return nil, err
	}
	c, err := s.opened(req.SessionId)
	if err == nil {
		err = c.choices.offers(string(req.ModeId))
	}
	if err != nil {
		return nil, err
	}
	return func(life context.Context) (any, error) {
		return acp.SetSessionModeResponse{}, c.setOptions(life, session.Options{Mode: string(req.ModeId)})
	}, nil
}

func (s *server) setModel(_ context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.UnstableSetSessionModelRequest](params)
	if err != nil {
		return nil, err
	}
	c, err := s.opened(req.SessionId)
	switch {
	case err != nil:
		return nil, err
	case req.ModelId == "":
		return nil, Invalid("modelId is empty; name a model")
	}
	return func(life context.Context) (any, error) {
		return acp.UnstableSetSessionModelResponse{}, c.setOptions(life, session.Options{Model: string(req.ModelId)})
	}, nil
}

func (s *server) setConfigOption(_ context.Context, params json.RawMessage) (work, error) {
	req, err := decode[struct {
		SessionID acp.SessionId `json:"sessionId"`
		ConfigID  string        `json:"configId"`
		Value     any           `json:"value"`
	}](params)
	if err != nil {
		return nil, err
	}
	c, err := s.opened(req.SessionID)
	if err != nil {
		return nil, err
	}
	value, ok := req.Value.(string)
	if !ok || value == "" {
		return nil, Invalid("value: %v is no value of an option; give a string", req.Value)
	}
	var o session.Options
	switch req.ConfigID {
	case optionMode:
		o.Mode = value
		err = c.choices.offers(value)
	case optionModel:
		o.Model = value
	default:
		err = Invalid("configId: there is no option %q; choose %s or %s", req.ConfigID, optionMode, optionModel)
	}
	if err != nil {
		return nil, err
	}
	return func(life context.Context) (any, error) {
		if err := c.setOptions(life, o); err != nil {
			return nil, err
		}
		c.choices.set(o.Mode, o.Model, nil)
		return acp.SetSessionConfigOptionResponse{ConfigOptions: append([]acp.SessionConfigOption{}, c.choices.options()...)}, nil
	}, nil
}
