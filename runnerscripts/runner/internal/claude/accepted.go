package claude

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// settingsReply is the reply to get_settings: the effective settings.
type settingsReply struct {
	Effective settings `json:"effective"`
	Errors    []struct {
		Path    string `json:"path"`
		Message string `json:"message"`
	} `json:"errors"`
}

// accepted returns an error if the program did not accept the whole profile. The program
// silently ignores what it does not understand, such as permission rules and hook events, and a
// deny rule must not get lost.
func (c *conversation) accepted(ctx context.Context, p *child.Process, init initialized) error {
	if err := acceptedNames(c.profile, init); err != nil {
		return err
	}
	if len(c.profile.AllowedTools)+len(c.profile.DeniedTools)+len(c.profile.Hooks) == 0 {
		return nil
	}
	raw, err := c.request(ctx, p, map[string]any{"subtype": "get_settings"})
	if err != nil {
		return err
	}
	var reply settingsReply
	if err := json.Unmarshal(raw, &reply); err != nil {
		return agent.Failed("use a version of Claude Code that tells its settings: %v", err)
	}
	for _, e := range reply.Errors {
		return agent.Invalid("correct the profile: Claude Code does not take its settings: %s: %s", e.Path, e.Message)
	}
	return acceptedSettings(c.profile, reply.Effective)
}

func acceptedNames(p runnerscripts.Profile, init initialized) error {
	for i, cmd := range p.Commands {
		if !slices.ContainsFunc(init.Commands, func(c offeredCommand) bool { return c.Name == cmd.Name }) && cmd.Frontmatter["user-invocable"] == nil {
			return notAccepted("commands[%d]", i)
		}
	}
	for i, sub := range p.Subagents {
		if !slices.ContainsFunc(init.Agents, func(a offeredAgent) bool { return a.Name == sub.Name && a.Description == sub.Description }) {
			return notAccepted("subagents[%d]", i)
		}
	}
	return nil
}

func acceptedSettings(p runnerscripts.Profile, got settings) error {
	for i, rule := range p.AllowedTools {
		if !slices.Contains(got.Permissions.Allow, rule) {
			return notAccepted("allowed_tools[%d]", i)
		}
	}
	for i, rule := range p.DeniedTools {
		if !slices.Contains(got.Permissions.Deny, rule) {
			return notAccepted("denied_tools[%d]", i)
		}
	}
	for i, h := range p.Hooks {
		taken := slices.ContainsFunc(got.Hooks[h.Event], func(m hooksMatcher) bool {
			return m.Matcher == h.Matcher && slices.ContainsFunc(m.Hooks, func(taken hook) bool { return taken.Command == h.Command })
		})
		if !taken {
			return notAccepted("hooks[%d]", i)
		}
	}
	return nil
}

func notAccepted(field string, i int) error {
	return agent.Invalid("correct profile.%s, or leave it out: Claude Code does not take it as it is", fmt.Sprintf(field, i))
}
