package opencode

import (
	"encoding/json"
	"path"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// toolTask is the name of the tool that starts a subagent.
const toolTask = "task"

// toolInput has the input fields of the built-in tools that the driver reads.
type toolInput struct {
	Command      string `json:"command"`
	Description  string `json:"description"`
	FilePath     string `json:"filePath"`
	Path         string `json:"path"`
	Pattern      string `json:"pattern"`
	Query        string `json:"query"`
	URL          string `json:"url"`
	Name         string `json:"name"`
	Prompt       string `json:"prompt"`
	SubagentType string `json:"subagent_type"`
	Offset       int    `json:"offset"`

	Content   *string `json:"content"`
	OldString *string `json:"oldString"`
	NewString *string `json:"newString"`

	Todos []struct {
		Content  string `json:"content"`
		Status   string `json:"status"`
		Priority string `json:"priority"`
	} `json:"todos"`
	Questions []struct {
		Question string `json:"question"`
	} `json:"questions"`
}

// parseInput decodes the fields that it knows; other tools have other fields.
func parseInput(raw json.RawMessage) toolInput {
	var in toolInput
	_ = json.Unmarshal(raw, &in)
	return in
}

// toolKind returns the kind of a built-in tool.
func toolKind(name string) runnerscripts.ToolKind {
	switch name {
	case "read", "list":
		return runnerscripts.ToolRead
	case "write", "edit", "apply_patch":
		return runnerscripts.ToolEdit
	case "glob", "grep", "websearch", "codesearch":
		return runnerscripts.ToolSearch
	case "bash":
		return runnerscripts.ToolExecute
	case "webfetch":
		return runnerscripts.ToolFetch
	case toolTask, "todowrite", "todoread":
		return runnerscripts.ToolThink
	}
	return runnerscripts.ToolOther
}

func (in toolInput) title(name string) string {
	detail := ""
	switch name {
	case "bash":
		if in.Command != "" {
			return in.Command
		}
	case toolTask:
		if in.Description != "" {
			return in.Description
		}
	case "question":
		if len(in.Questions) > 0 {
			return in.Questions[0].Question
		}
	case "read", "write", "edit":
		detail = in.FilePath
	case "list":
		detail = in.Path
	case "glob", "grep":
		detail = in.Pattern
	case "websearch", "codesearch":
		detail = in.Query
	case "webfetch":
		detail = in.URL
	case "skill":
		detail = in.Name
	}
	return strings.TrimSpace(name + " " + detail)
}

// toolCall describes a tool call by its input.
func (t *translator) toolCall(p part) runnerscripts.ToolCall {
	in := parseInput(p.State.Input)
	call := runnerscripts.ToolCall{
		ToolCallID: p.ID, Name: p.Tool, Title: in.title(p.Tool), Kind: toolKind(p.Tool), RawInput: p.State.Input,
	}
	if in.FilePath == "" {
		if in.Path != "" {
			call.Locations = []runnerscripts.Location{{Path: t.absolute(in.Path)}}
		}
		return call
	}
	file := t.absolute(in.FilePath)
	call.Locations = []runnerscripts.Location{{Path: file, Line: in.Offset}}
	switch {
	case in.NewString != nil:
		call.Content = diff(file, in.OldString, *in.NewString)
	case in.Content != nil:
		call.Content = diff(file, nil, *in.Content)
	}
	return call
}

// absolute makes a path of the agent absolute. The agent's working directory is the workspace.
func (t *translator) absolute(file string) string {
	if path.IsAbs(file) {
		return file
	}
	return path.Join(t.workspace, file)
}

func diff(file string, old *string, text string) []runnerscripts.ToolCallContent {
	return []runnerscripts.ToolCallContent{{Type: "diff", Path: file, OldText: old, NewText: text}}
}

// toolResult describes the result of a tool call.
func (t *translator) toolResult(p part) runnerscripts.ToolCall {
	update := runnerscripts.ToolCall{ToolCallID: p.ID, Status: runnerscripts.ToolCompleted}
	if p.State.Status == toolError {
		update.Status = runnerscripts.ToolFailed
		update.Content = texts(p.State.Error)
		update.RawOutput = rawJSON(p.State.Error)
		return update
	}
	if update.ExitCode = p.exitStatus(); update.ExitCode != 0 {
		update.Status = runnerscripts.ToolFailed
	}
	update.RawOutput = rawJSON(map[string]any{"output": p.State.Output, "metadata": p.State.Metadata})
	update.Content = t.toolCall(p).Content // the change of a file
	if update.Content == nil {
		update.Content = append(t.patched(p), texts(p.State.Output)...)
	}
	for _, file := range p.State.Attachments {
		if c, ok := fileContent(file); ok {
			update.Content = append(update.Content, runnerscripts.ToolCallContent{Type: "content", Content: &c})
		}
	}
	return update
}

// exitStatus returns the exit status of the command of a tool call, or 0 if the call ran no
// command.
func (p part) exitStatus() int {
	var meta struct {
		Exit int `json:"exit"`
	}
	_ = json.Unmarshal(p.State.Metadata, &meta) // other tools have other metadata
	return meta.Exit
}

// patched returns the changes of a patch to several files.
func (t *translator) patched(p part) []runnerscripts.ToolCallContent {
	var meta struct {
		Files []struct {
			FilePath string  `json:"filePath"`
			Before   *string `json:"before"`
			After    *string `json:"after"`
		} `json:"files"`
	}
	if json.Unmarshal(p.State.Metadata, &meta) != nil {
		return nil // the metadata of another tool
	}
	var list []runnerscripts.ToolCallContent
	for _, f := range meta.Files {
		if f.After != nil {
			list = append(list, diff(t.absolute(f.FilePath), f.Before, *f.After)...)
		}
	}
	return list
}

func texts(s string) []runnerscripts.ToolCallContent {
	if s == "" {
		return nil
	}
	return []runnerscripts.ToolCallContent{{Type: "content", Content: &runnerscripts.Content{Type: "text", Text: s}}}
}

// fileContent returns the content of a file part. It returns false for another type of part.
func fileContent(p part) (runnerscripts.Content, bool) {
	if p.Type != partFile {
		return runnerscripts.Content{}, false
	}
	head, data, ok := strings.Cut(p.URL, ",")
	if !ok || !strings.HasPrefix(head, "data:") || !strings.HasSuffix(head, ";base64") {
		return runnerscripts.Content{Type: "resource_link", URI: p.URL, MimeType: p.Mime}, true
	}
	kind, _, _ := strings.Cut(p.Mime, "/")
	return runnerscripts.Content{Type: kind, Data: data, MimeType: p.Mime}, true
}

// plan returns the plan that a todowrite call writes. It returns false for another tool.
func plan(p part) (runnerscripts.Plan, bool) {
	if p.Tool != "todowrite" {
		return runnerscripts.Plan{}, false
	}
	var list runnerscripts.Plan
	for _, todo := range parseInput(p.State.Input).Todos {
		list.Entries = append(list.Entries, runnerscripts.PlanEntry{
			Content: todo.Content, Status: todo.Status, Priority: todo.Priority,
		})
	}
	return list, true
}

func rawJSON(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic("what was JSON is none: " + err.Error()) // cannot happen: it came from JSON
	}
	return data
}
