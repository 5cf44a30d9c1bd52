package codex

import (
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// expand returns the prompt for a slash command in text, or text if it has none. Codex has no slash
// commands for clients.
func expand(commands []runnerscripts.SlashCommand, text string) string {
	const placeholder = "$ARGUMENTS"
	for _, c := range commands {
		args, ok := strings.CutPrefix(text, "/"+c.Name)
		if !ok || args != "" && !strings.ContainsAny(args[:1], " \t\n") {
			continue
		}
		args = strings.TrimSpace(args)
		if args != "" && !strings.Contains(c.Content, placeholder) {
			return c.Content + "\n\n" + args
		}
		return strings.ReplaceAll(c.Content, placeholder, args)
	}
	return text
}

// offerCommands reports the slash commands in the format of ACP.
func (c *conversation) offerCommands() {
	if len(c.profile.Commands) == 0 {
		return
	}
	type input struct {
		Hint string `json:"hint"`
	}
	type command struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Input       *input `json:"input,omitempty"`
	}
	list := make([]command, 0, len(c.profile.Commands))
	for _, cmd := range c.profile.Commands {
		offered := command{Name: cmd.Name, Description: cmd.Description}
		if hint, ok := cmd.Frontmatter[keyHint].(string); ok {
			offered.Input = &input{Hint: hint}
		}
		list = append(list, offered)
	}
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeCommands, map[string]any{"availableCommands": list})
}
