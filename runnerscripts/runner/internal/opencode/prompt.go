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
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// prompt is the request that sends a query to the server.
type prompt struct {
	path string // relative to the path of the session
	body any
}

// begin returns the request for a query and reports the user's message.
func (c *conversation) begin(id, text string, attachments []runnerscripts.Attachment, now time.Time) prompt {
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
			MessageID: id, Command: name, Arguments: arguments, Model: model, Agent: agentOf(mode), Parts: fileParts(attachments, now),
		}}
	}
	prt := promptPart{ID: newID("prt", now), Type: partText, Text: text}
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
		BlockID: prt.ID, Content: runnerscripts.Content{Type: "text", Text: text},
	})
	files := fileParts(attachments, now)
	for _, f := range files {
		if content, ok := attached(part{Mime: f.Mime}); ok {
			c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{BlockID: f.ID, Content: content})
		}
	}
	body := promptBody{MessageID: id, Agent: agentOf(mode), Parts: append([]promptPart{prt}, files...)}
	if model != "" {
		ref, _ := parseModel(model) // the model was checked when it was set
		body.Model = &ref
	}
	return prompt{path: "/prompt_async", body: body}
}

// checkAttachments returns an error for attachments that the model of the next query does not take.
func (c *conversation) checkAttachments(attachments []runnerscripts.Attachment) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offer.checkAttachments(firstOf(c.model, c.offer.initial), attachments)
}

// fileParts returns the parts of a prompt for its attachments. Their IDs are of later times than now,
// because the program orders the parts of a message by ID, and its text is of now.
func fileParts(attachments []runnerscripts.Attachment, now time.Time) []promptPart {
	var parts []promptPart
	for _, a := range attachments {
		now = now.Add(time.Millisecond)
		if a.Feature() == runnerscripts.FeatureTextFiles {
			a.MediaType = "text/plain" // the only text that the program does not pass to the model's API as a file
		}
		parts = append(parts, promptPart{ID: newID("prt", now), Type: partFile, Mime: a.MediaType, Filename: a.Name, URL: agent.DataURL(a)})
	}
	return parts
}

// attached returns the content that is reported for a file of the user: an image, without its data,
// which the session has. Other files are reported with the prompt alone.
func attached(p part) (runnerscripts.Content, bool) {
	return runnerscripts.Content{Type: "image", MimeType: p.Mime}, strings.HasPrefix(p.Mime, "image/")
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
