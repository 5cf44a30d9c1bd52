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

// prompt is what to send the server for a query.
type prompt struct {
	path string // below that of the session
	body any
}

// begin makes the request for a query and tells what the user said.
func (c *conversation) begin(id, text string, now time.Time) prompt {
	c.mu.Lock()
	session, model, mode := c.id, c.model, c.mode
	name, arguments, ok := c.command(text)
	c.mu.Unlock()
	c.talking.Lock()
	defer c.talking.Unlock()
	c.translate.spent = runnerscripts.Usage{}
	if ok {
		// Its text is made by the program, which tells it.
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
		ref, _ := parseModel(model) // it was checked before it became the model
		body.Model = &ref
	}
	return prompt{path: "/prompt_async", body: body}
}

// command reads a prompt as a slash command, if it is one of those on offer. The
// caller holds mu.
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

// reportServers tells once which MCP servers of a server do not work. It waits
// until they are started, as the first prompt would.
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

// log tells something about the program itself.
func (c *conversation) log(level, message string) {
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{Level: level, Message: message})
}
