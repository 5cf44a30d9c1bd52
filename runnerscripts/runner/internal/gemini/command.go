package gemini

import (
	"context"
	"encoding/json"
	"strings"
	"unicode"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// commanded is a conversation that implements the profile's slash commands, because the program has
// no custom commands when it is driven through ACP.
type commanded struct {
	agent.Conversation
	commands []runnerscripts.SlashCommand
}

func (c commanded) Prompt(ctx context.Context, id, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	return c.Conversation.Prompt(ctx, id, expand(c.commands, text), attachments...)
}

// expand returns the prompt for a slash command, or text if it is no known command.
func expand(commands []runnerscripts.SlashCommand, text string) string {
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), "/")
	if !ok {
		return text
	}
	name, args := rest, ""
	if i := strings.IndexFunc(rest, unicode.IsSpace); i >= 0 {
		name, args = rest[:i], strings.TrimSpace(rest[i:])
	}
	for _, c := range commands {
		switch {
		case c.Name != name:
		case strings.Contains(c.Content, argumentsMark):
			return strings.ReplaceAll(c.Content, argumentsMark, args)
		case args != "":
			return strings.TrimSpace(c.Content) + "\n\n" + args
		default:
			return c.Content
		}
	}
	return text
}

// argumentsMark is the placeholder for the arguments of a command.
const argumentsMark = "$ARGUMENTS"

// withCommands adds the profile's commands to those that the program reports.
func withCommands(u acp.Update, commands []runnerscripts.SlashCommand) acp.Update {
	var said struct {
		SessionUpdate     string            `json:"sessionUpdate"`
		AvailableCommands []json.RawMessage `json:"availableCommands"`
	}
	if len(commands) == 0 || json.Unmarshal(u.Raw, &said) != nil {
		return u
	}
	for _, c := range commands {
		raw, err := json.Marshal(map[string]string{"name": c.Name, "description": c.Description})
		if err != nil {
			return u
		}
		said.AvailableCommands = append(said.AvailableCommands, raw)
	}
	return newUpdate(runnerscripts.TypeCommands, said)
}
