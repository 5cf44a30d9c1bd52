package codex

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// startCall reports the start of a tool call.
func (t *translator) startCall(at time.Time, conv string, i item) {
	call := i.toolCall()
	call.Status = runnerscripts.ToolInProgress
	t.calls = append(t.calls, openCall{conv, call})
	t.begun[i.ID] = true
	t.emit(at, conv, runnerscripts.TypeToolCall, call)
}

// open returns the index of an open tool call, or -1.
func (t *translator) open(conv, id string) int {
	return slices.IndexFunc(t.calls, func(c openCall) bool { return c.conv == conv && c.call.ToolCallID == id })
}

// openCall returns a running tool call; for an unknown ID only the ID is set.
func (t *translator) openCall(conv, id string) runnerscripts.ToolCall {
	if n := t.open(conv, id); n >= 0 {
		return t.calls[n].call
	}
	return runnerscripts.ToolCall{ToolCallID: id}
}

// isCommand reports whether a tool call is a command.
func isCommand(call runnerscripts.ToolCall) bool { return call.Name == itemCommand }

// runsCommand reports whether a command is open.
func (t *translator) runsCommand(conv string) bool {
	return slices.ContainsFunc(t.calls, func(c openCall) bool { return c.conv == conv && isCommand(c.call) })
}

// endCall reports the end of a tool call, unless the end of its turn has done so: a late report
// would be attributed to the next query.
func (t *translator) endCall(at time.Time, conv string, i item) {
	switch n := t.open(conv, i.ID); {
	case n >= 0:
		t.calls = slices.Delete(t.calls, n, n+1)
	case t.failed[i.ID]:
		return
	}
	update := runnerscripts.ToolCall{ToolCallID: i.ID, Status: runnerscripts.ToolFailed}
	if i.Status == statusCompleted || i.Status == "" {
		update.Status = runnerscripts.ToolCompleted
	}
	switch i.Type {
	case itemCommand:
		update.Content = textContent(i.AggregatedOutput)
		if i.ExitCode != nil {
			update.ExitCode = *i.ExitCode
			update.RawOutput = jsonOf(map[string]any{"exitCode": *i.ExitCode, "output": i.AggregatedOutput})
		}
	case itemFiles, itemCollab:
	case itemMCP:
		update.Content, update.RawOutput = i.mcpResult()
	default:
		update.RawOutput = i.raw
	}
	t.emit(at, conv, runnerscripts.TypeToolCallUpdate, update)
}

// openTool returns the last open call of a tool; zero if there is none.
func (t *translator) openTool(conv, name string) runnerscripts.ToolCall {
	for _, c := range slices.Backward(t.calls) {
		if c.conv == conv && c.call.Name == name {
			return c.call
		}
	}
	return runnerscripts.ToolCall{}
}

// toolCall returns the tool call that the item describes.
func (i item) toolCall() runnerscripts.ToolCall {
	call := runnerscripts.ToolCall{ToolCallID: i.ID, Name: i.Type, Title: i.Type, Kind: runnerscripts.ToolOther}
	switch i.Type {
	case itemCommand:
		script := unwrap(i.Command)
		call.Title = script
		call.RawInput = jsonOf(map[string]any{"command": script, "cwd": i.Cwd})
		call.Kind, call.Locations = commandKind(i.CommandActions, i.Cwd)
	case itemFiles:
		changes := slices.Clone(i.Changes)
		slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.Path, b.Path) })
		call.Title, call.Kind = changesTitle(changes)
		call.RawInput = jsonOf(map[string]any{"changes": changes})
		for _, c := range changes {
			content, loc := c.content()
			call.Content = append(call.Content, content...)
			call.Locations = append(call.Locations, loc)
		}
	case itemMCP:
		call.Name = i.Server + "/" + i.Tool
		call.Title = call.Name
		call.RawInput = i.Arguments
	case itemSearch:
		call.Title, call.Kind = strings.TrimSpace("Search the web: "+i.Query), runnerscripts.ToolSearch
	case itemImage:
		call.Title, call.Kind = "View "+filepath.Base(i.Path), runnerscripts.ToolRead
		call.Locations = []runnerscripts.Location{{Path: i.Path}}
	case itemCollab:
		call.Name, call.Title, call.Kind = i.Tool, i.Tool, runnerscripts.ToolThink
		if i.Prompt != "" {
			call.RawInput = jsonOf(map[string]any{"prompt": i.Prompt})
		}
	}
	return call
}

// commandKind returns the kind and the locations of a command according to Codex's analysis.
func commandKind(actions []action, cwd string) (runnerscripts.ToolKind, []runnerscripts.Location) {
	if len(actions) != 1 {
		return runnerscripts.ToolExecute, nil
	}
	switch a := actions[0]; a.Type {
	case "read":
		path := a.Path
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		return runnerscripts.ToolRead, []runnerscripts.Location{{Path: path}}
	case "listFiles", "search":
		return runnerscripts.ToolSearch, nil
	}
	return runnerscripts.ToolExecute, nil
}

func changesTitle(changes []change) (string, runnerscripts.ToolKind) {
	if len(changes) != 1 {
		return fmt.Sprintf("Change %d files", len(changes)), runnerscripts.ToolEdit
	}
	c := changes[0]
	name := filepath.Base(c.Path)
	switch {
	case c.Kind.Type == "add":
		return "Write " + name, runnerscripts.ToolEdit
	case c.Kind.Type == "delete":
		return "Delete " + name, runnerscripts.ToolDelete
	case c.Kind.MovePath != "":
		return fmt.Sprintf("Move %s to %s", name, filepath.Base(c.Kind.MovePath)), runnerscripts.ToolMove
	}
	return "Edit " + name, runnerscripts.ToolEdit
}

// content returns the content of a change: the whole file if it is new or deleted, else each
// hunk with its context lines.
func (c change) content() ([]runnerscripts.ToolCallContent, runnerscripts.Location) {
	loc := runnerscripts.Location{Path: c.Path}
	show := func(old *string, text string) runnerscripts.ToolCallContent {
		return runnerscripts.ToolCallContent{Type: "diff", Path: c.Path, OldText: old, NewText: text}
	}
	switch c.Kind.Type {
	case "add":
		return []runnerscripts.ToolCallContent{show(nil, c.Diff)}, loc
	case "delete":
		return []runnerscripts.ToolCallContent{show(&c.Diff, "")}, loc
	}
	if c.Kind.MovePath != "" {
		loc.Path = c.Kind.MovePath
	}
	var list []runnerscripts.ToolCallContent
	for _, h := range hunks(c.Diff) {
		if loc.Line == 0 {
			loc.Line = h.line
		}
		list = append(list, show(&h.old, h.text))
	}
	return list, loc
}

// hunk is a part of a file before and after a change.
type hunk struct {
	line      int // the first line after the change
	old, text string
}

// hunks parses a unified diff without a header.
func hunks(diff string) []hunk {
	var list []hunk
	for line := range strings.Lines(diff) {
		if strings.HasPrefix(line, "@@") {
			var h hunk
			var from string
			_, _ = fmt.Sscanf(line, "@@ %s +%d", &from, &h.line) // zero if the line has no numbers
			list = append(list, h)
			continue
		}
		if len(list) == 0 {
			continue
		}
		h := &list[len(list)-1]
		switch line[0] {
		case '-':
			h.old += line[1:]
		case '+':
			h.text += line[1:]
		case ' ':
			h.old += line[1:]
			h.text += line[1:]
		}
	}
	return list
}

// mcpResult returns the answer of an MCP server's tool.
func (i item) mcpResult() ([]runnerscripts.ToolCallContent, json.RawMessage) {
	var result *struct {
		Content           []runnerscripts.Content `json:"content"`
		StructuredContent any                     `json:"structuredContent,omitempty"`
		IsError           bool                    `json:"isError,omitempty"`
	}
	// Result is null after a failure.
	if json.Unmarshal(i.Result, &result) == nil && result != nil {
		var list []runnerscripts.ToolCallContent
		for _, c := range result.Content {
			list = append(list, runnerscripts.ToolCallContent{Type: "content", Content: &c})
		}
		return list, jsonOf(result)
	}
	var failure struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(i.Error, &failure) == nil {
		return textContent(failure.Message), i.Error
	}
	return nil, nil
}

func textContent(text string) []runnerscripts.ToolCallContent {
	if text == "" {
		return nil
	}
	return []runnerscripts.ToolCallContent{{Type: "content", Content: &runnerscripts.Content{Type: "text", Text: text}}}
}

// jsonOf returns v as JSON. It panics if v has no JSON form.
func jsonOf(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("no JSON of a value of the driver: %v", err))
	}
	return data
}
