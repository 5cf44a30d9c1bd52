package opencode

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// prompt is the request that sends a query to the server.
type prompt struct {
	path string // relative to the path of the session
	body any
}

// begin returns the request for a query and reports the user's message.
func (c *conversation) begin(id, text string, now time.Time) prompt {
	c.mu.Lock()
	session, model, mode := c.id, c.model, c.mode
	name, arguments, ok := c.command(text)
	c.mu.Unlock()
	c.talking.Lock()
	defer c.talking.Unlock()
	c.translate.spent = runnerscripts.Usage{}
	if ok {
		// The program creates the text of this message and reports it.
		c.translate.prompts[id] = true
		c.translate.infos[id] = messageInfo{ID: id, SessionID: session, Role: roleUser}
		return prompt{path: "/command", body: commandBody{
			MessageID: id, Command: name, Arguments: arguments, Model: model, Agent: agentOf(mode),
		}}
	}
	prt := promptPart{ID: newID("prt", now), Type: partText, Text: text}
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
		BlockID: prt.ID, Content: runnerscripts.Content{Type: "text", Text: text},
	})
	body := promptBody{MessageID: id, Agent: agentOf(mode), Parts: []promptPart{prt}}
	if model != "" {
		ref, _ := parseModel(model) // the model was checked when it was set
		body.Model = &ref
	}
	return prompt{path: "/prompt_async", body: body}
}

// command parses a prompt as a slash command. It returns false if the program does not have the
// command. The caller holds mu.
func (c *conversation) command(text string) (name, arguments string, ok bool) {
	text, ok = strings.CutPrefix(text, "/")
	if !ok {
		return "", "", false
	}
	name = text
	if i := strings.IndexFunc(text, unicode.IsSpace); i >= 0 {
		name, arguments = text[:i], strings.TrimSpace(text[i:])
	}
	return name, arguments, slices.ContainsFunc(c.offer.commands, func(known commandInfo) bool { return known.Name == name })
}

// reportServers reports the MCP servers that do not work, once for each server process. It waits
// until the MCP servers are started, as the first prompt would.
func (c *conversation) reportServers(ctx context.Context, s *server) {
	if s.reported {
		return
	}
	s.reported = true
	var list map[string]struct {
		Status string `json:"status"`
		Error  string `json:"error"`
	}
	if err := s.get(ctx, "/mcp", &list); err != nil {
		if ctx.Err() != nil {
			return
		}
		c.log("warn", fmt.Sprintf("it is not known whether the MCP servers work: %v", err))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		switch status := list[name]; status.Status {
		case "connected", "disabled":
		default:
			c.log("error", fmt.Sprintf("the MCP server %q does not work, so its tools are missing: %s",
				name, strings.TrimSpace(status.Status+" "+status.Error)))
		}
	}
}

// log reports a message about the program itself.
func (c *conversation) log(level, message string) {
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{Level: level, Message: message})
}
