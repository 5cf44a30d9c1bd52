package opencode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The modes. The first two are agents of the program; other configured agents are modes, too. The
// last two use the agent "build", but the driver answers some or all requests itself.
const (
	modeBuild       = "build"       // asks before it changes something
	modePlan        = "plan"        // changes no files
	modeAcceptEdits = "acceptEdits" // does not ask about file changes in the workspace
	modeAuto        = "auto"        // never asks
)

// agentOf returns the program's agent for a mode.
func agentOf(mode string) string {
	if mode == modeAcceptEdits || mode == modeAuto {
		return modeBuild
	}
	return mode
}

// offer is what the configured program supports.
type offer struct {
	version  string
	models   map[string]int64 // context window sizes, by provider/model
	takes    map[string]inputs
	initial  string // the model that the configuration chooses, if any
	modes    []string
	agents   []string // all agents, including subagents
	tools    []string
	commands []commandInfo
	servers  []string // names of the MCP servers
}

func (o offer) checkMode(mode string) error {
	if slices.Contains(o.modes, mode) {
		return nil
	}
	return agent.Invalid("choose one of the modes of OpenCode (%s): there is none named %q", strings.Join(o.modes, ", "), mode)
}

func (o offer) checkModel(model string) error {
	if _, err := parseModel(model); err != nil {
		return err
	}
	if _, ok := o.models[model]; ok {
		return nil
	}
	return agent.Invalid("choose a model that OpenCode knows (%s), give the provider's key, or define it as provider in agent.config: "+
		"there is none named %q", strings.Join(shortList(slices.Sorted(maps.Keys(o.models))), ", "), model)
}

// checkAttachments returns an error for an attachment that a model does not take: the program would
// tell the model so and go on. An empty model is one that the program chooses.
func (o offer) checkAttachments(model string, attachments []runnerscripts.Attachment) error {
	takes, known := o.takes[model]
	for _, a := range attachments {
		f := a.Feature()
		if known && (f == runnerscripts.FeatureImages && !takes.Image || f == runnerscripts.FeaturePDF && !takes.PDF) {
			return agent.Unsupported("choose another model, or say in agent.config what it takes (modalities): the model %s of OpenCode does not take %s (%s)",
				model, a.Name, a.MediaType)
		}
	}
	return nil
}

// checkProfile returns an error if a profile names something that the program lacks.
func (o offer) checkProfile(p runnerscripts.Profile) error {
	for i, cmd := range p.Commands {
		where := fmt.Sprintf("profile.commands[%d].frontmatter.", i)
		if name, ok := cmd.Frontmatter["agent"]; ok && !slices.Contains(o.agents, fmt.Sprint(name)) {
			return agent.Invalid("correct %sagent: OpenCode has no agent named %q (it has: %s)", where, name, strings.Join(o.agents, ", "))
		}
		if model, ok := cmd.Frontmatter["model"]; ok {
			if err := o.checkModel(fmt.Sprint(model)); err != nil {
				return agent.Invalid("correct %smodel: %v", where, err)
			}
		}
	}
	for i, sub := range p.Subagents {
		if sub.Model == "" {
			continue
		}
		if err := o.checkModel(sub.Model); err != nil {
			return agent.Invalid("correct profile.subagents[%d].model: %v", i, err)
		}
	}
	return o.checkTools(p)
}

// checkTools returns an error if a profile names a tool that the program lacks: denying a
// misspelled name would deny nothing.
func (o offer) checkTools(p runnerscripts.Profile) error {
	known := []string{outside, "doom_loop", "edit", "list", "lsp", "plan_enter", "plan_exit", "websearch", "codesearch", "todoread", "todowrite", "question"}
	known = append(known, o.tools...)
	for field, tools := range map[string][]string{"allowed_tools": p.AllowedTools, "denied_tools": p.DeniedTools} {
		for i, tool := range tools {
			where := fmt.Sprintf("profile.%s[%d]", field, i)
			name, _, err := parseTool(where, tool)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(known, func(k string) bool { return fits(k, name) }) && !o.ofServer(name) {
				return agent.Invalid("give %s as one of the tools of OpenCode (%s) or of an MCP server, as server_tool: there is none named %q",
					where, strings.Join(o.tools, ", "), name)
			}
		}
	}
	return nil
}

// ofServer reports whether a name may be a tool of an MCP server. It cannot know, because the
// servers' tools are not known yet.
func (o offer) ofServer(name string) bool {
	return slices.ContainsFunc(o.servers, func(server string) bool {
		return strings.ContainsAny(name, "*?") || strings.HasPrefix(name, notOfName.Get().ReplaceAllString(server, "_")+"_")
	})
}

// notOfName matches the characters that the program replaces in names of servers.
var notOfName = agent.Pattern{Expr: `[^A-Za-z0-9_-]`}

// shortList returns the names, shortened to fit into a message.
func shortList(names []string) []string {
	const most = 12
	if len(names) <= most {
		return names
	}
	return append(names[:most:most], fmt.Sprintf("and %d more", len(names)-most))
}

// ensureServer returns the server, and restarts it first if it has ended.
func (c *conversation) ensureServer(ctx context.Context) (*server, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	s, over := c.server, c.over
	c.mu.Unlock()
	if over {
		return nil, agent.Closed()
	}
	select {
	case <-s.eventsDone:
		return c.start(ctx)
	default:
		return s, nil
	}
}

// start starts the server, opens the session, and queries what the program supports.
func (c *conversation) start(ctx context.Context) (*server, error) {
	if err := writeConfiguration(c.session, c.profile); err != nil {
		return nil, err
	}
	s, err := startServer(ctx, c.session, nil, c.patience)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, startFailure(fmt.Errorf("it did not answer within %v", c.patience)))
	defer cancel()
	if err := c.open(ctx, s); err != nil {
		s.kill()
		return nil, whyNot(ctx, s, err)
	}
	c.mu.Lock()
	over := c.over
	if !over {
		c.server = s
	}
	c.mu.Unlock()
	if over {
		s.kill()
		return nil, agent.Closed()
	}
	return s, nil
}

// open subscribes to the events of a new server and opens the session on it. It reports the
// problems of the start.
func (c *conversation) open(ctx context.Context, s *server) error {
	n, err := newNotices(ctx, s)
	if err != nil {
		return err
	}
	s.log = newStartLog(c.session)
	err = s.follow(ctx, c.silence, c.handle)
	if err == nil {
		err = c.prepare(ctx, s)
	}
	for _, problem := range n.stop() {
		c.log("error", problem)
	}
	c.reportLog(s)
	return err
}

// reportLog reports the problems that the program has logged at its start.
func (c *conversation) reportLog(s *server) {
	for _, problem := range s.log.problems() {
		c.log("error", problem)
	}
}

// whyNot returns the error for a server that failed to start properly.
func whyNot(ctx context.Context, s *server, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, told := errors.AsType[*runnerscripts.ScriptFailure](err); told {
		return err
	}
	if _, answered := errors.AsType[*statusError](err); !answered {
		err = fmt.Errorf("%w: %s", err, s.crash())
	}
	return startFailure(err)
}

// prepare checks the settings against what a new server supports, and opens the session. The first
// server of a conversation also emits session_initialized.
func (c *conversation) prepare(ctx context.Context, s *server) error {
	off, err := s.offer(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	model, mode := c.model, c.mode
	c.mu.Unlock()
	if err := off.checkMode(mode); err != nil {
		return err
	}
	if err := off.checkProfile(c.profile); err != nil {
		return err
	}
	if len(off.models) == 0 {
		return agent.Invalid("give OpenCode a model: a provider's key in agent.env, such as ANTHROPIC_API_KEY, " +
			"or a provider in agent.config, as in opencode.json; without one there is no model to ask")
	}
	if model != "" {
		if err := off.checkModel(model); err != nil {
			return err
		}
	}
	id, resumed, err := openSession(ctx, s, c.session)
	if err != nil {
		return err
	}
	if err := s.writeAddress(c.session); err != nil {
		return err
	}
	c.talking.Lock()
	c.translate.conversations[id] = runnerscripts.MainConversation
	maps.Copy(c.translate.windows, off.models)
	c.talking.Unlock()
	c.mu.Lock()
	c.id, c.offer = id, off
	first := !c.initialized
	c.initialized = true
	c.mu.Unlock()
	if first {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionInitialized, runnerscripts.SessionInitialized{
			Agent: programName, AgentVersion: off.version, Model: firstOf(model, off.initial), Mode: mode,
			Tools: off.toolsFor(c.profile), Models: off.list(), Resumed: resumed,
		})
		c.offerCommands(off.commands)
	}
	return nil
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// list returns the models, sorted by name.
func (o offer) list() []runnerscripts.Model {
	var models []runnerscripts.Model
	for _, id := range slices.Sorted(maps.Keys(o.models)) {
		models = append(models, runnerscripts.Model{ID: id})
	}
	return models
}

// toolsFor returns the program's own tools that the model gets with a profile. The tools of MCP
// servers are not known at the start.
func (o offer) toolsFor(p runnerscripts.Profile) []string {
	return slices.DeleteFunc(slices.Clone(o.tools), func(tool string) bool {
		own, _, err := parseTool("", tool)
		if err != nil || tool == "invalid" { // a built-in tool for invalid calls
			return true
		}
		return slices.ContainsFunc(p.DeniedTools, func(denied string) bool {
			permission, pattern, err := parseTool("", denied)
			return err == nil && pattern == "*" && fits(own, permission)
		})
	})
}

// offerCommands reports the slash commands in the format of ACP.
func (c *conversation) offerCommands(commands []commandInfo) {
	if len(commands) == 0 {
		return
	}
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeCommands, map[string]any{"availableCommands": commands})
}

// offer queries what the server supports.
func (s *server) offer(ctx context.Context) (offer, error) {
	o := offer{models: map[string]int64{}, takes: map[string]inputs{}, modes: []string{modeAcceptEdits, modeAuto}}
	var providers providerList
	var agents []agentInfo
	var health struct {
		Version string `json:"version"`
	}
	var conf struct {
		Model string                     `json:"model"`
		MCP   map[string]json.RawMessage `json:"mcp"`
	}
	for path, out := range map[string]any{
		"/config/providers": &providers, "/agent": &agents, "/command": &o.commands,
		"/experimental/tool/ids": &o.tools, "/global/health": &health, "/config": &conf,
	} {
		if err := s.get(ctx, path, out); err != nil {
			return o, err
		}
	}
	o.version, o.initial, o.servers = health.Version, conf.Model, slices.Sorted(maps.Keys(conf.MCP))
	for _, p := range providers.Providers {
		for name, m := range p.Models {
			o.models[p.ID+"/"+name], o.takes[p.ID+"/"+name] = m.Limit.Context, m.Capabilities.Input
		}
	}
	for _, a := range agents {
		o.agents = append(o.agents, a.Name)
		if a.Mode != "subagent" && !a.Hidden {
			o.modes = append(o.modes, a.Name)
		}
	}
	slices.Sort(o.modes)
	return o, nil
}
