package claude

import (
	"bytes"
	"encoding/json"
	"path"
	"strconv"
	"strings"
	"unicode"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// toolInput has the reported input fields of the built-in tools.
type toolInput struct {
	Command      string `json:"command"`
	Description  string `json:"description"`
	FilePath     string `json:"file_path"`
	NotebookPath string `json:"notebook_path"`
	Path         string `json:"path"`
	Pattern      string `json:"pattern"`
	Query        string `json:"query"`
	URL          string `json:"url"`
	Prompt       string `json:"prompt"`
	SubagentType string `json:"subagent_type"`
	Skill        string `json:"skill"`
	Offset       int    `json:"offset"`

	Content   *string `json:"content"`
	OldString *string `json:"old_string"`
	NewString *string `json:"new_string"`

	Todos []struct {
		Content string `json:"content"`
		Status  string `json:"status"`
	} `json:"todos"`
	Questions []struct {
		Question string `json:"question"`
	} `json:"questions"`
}

// parseInput decodes the known fields; other tools have other inputs.
func parseInput(raw json.RawMessage) toolInput {
	var in toolInput
	_ = json.Unmarshal(raw, &in)
	return in
}

// file returns the file on which the tool works, if any.
func (in toolInput) file() string {
	if in.FilePath != "" {
		return in.FilePath
	}
	return in.NotebookPath
}

// toolKind returns the kind of a tool, as far as it is built in.
func toolKind(name string) runnerscripts.ToolKind {
	switch name {
	case "Read", "NotebookRead", "LS":
		return runnerscripts.ToolRead
	case "Write", "Edit", "MultiEdit", "NotebookEdit":
		return runnerscripts.ToolEdit
	case "Glob", "Grep", "ToolSearch", "WebSearch":
		return runnerscripts.ToolSearch
	case "Bash", "BashOutput", "KillShell", "Monitor":
		return runnerscripts.ToolExecute
	case "WebFetch":
		return runnerscripts.ToolFetch
	case "Agent", "Task", "TodoWrite", "ExitPlanMode", "EnterPlanMode":
		return runnerscripts.ToolThink
	}
	return runnerscripts.ToolOther
}

// isSubagentTool reports whether the tool starts a subagent.
func isSubagentTool(name string) bool { return name == "Agent" || name == "Task" }

func (in toolInput) title(name string) string {
	detail := ""
	switch name {
	case "Bash":
		if in.Command != "" {
			return in.Command
		}
	case "Agent", "Task":
		if in.Description != "" {
			return in.Description
		}
	case "AskUserQuestion":
		if len(in.Questions) > 0 {
			return in.Questions[0].Question
		}
	case "Read", "Write", "Edit", "MultiEdit", "NotebookEdit", "NotebookRead":
		detail = in.file()
	case "LS":
		detail = in.Path
	case "Glob", "Grep":
		detail = in.Pattern
	case "WebSearch", "ToolSearch":
		detail = in.Query
	case "WebFetch":
		detail = in.URL
	case "Skill":
		detail = in.Skill
	}
	return strings.TrimSpace(name + " " + detail)
}

// toolCall describes a tool call by its input.
func (t *translator) toolCall(id, name string, raw json.RawMessage) runnerscripts.ToolCall {
	in := parseInput(raw)
	call := runnerscripts.ToolCall{
		ToolCallID: id, Name: name, Title: in.title(name), Kind: toolKind(name), RawInput: raw,
	}
	if file := in.file(); file != "" {
		file = t.absolute(file)
		call.Locations = []runnerscripts.Location{{Path: file, Line: in.Offset}}
		switch {
		case in.NewString != nil:
			call.Content = diff(file, in.OldString, *in.NewString)
		case in.Content != nil:
			call.Content = diff(file, nil, *in.Content)
		}
	} else if in.Path != "" && (call.Kind == runnerscripts.ToolRead || call.Kind == runnerscripts.ToolSearch) {
		call.Locations = []runnerscripts.Location{{Path: t.absolute(in.Path)}}
	}
	return call
}

// absolute resolves a path of the agent, which works in the workspace. The program takes space around a path for none.
func (t *translator) absolute(file string) string {
	file = strings.TrimFunc(file, func(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' })
	if below, ok := strings.CutPrefix(file, "~"); ok && (below == "" || below[0] == '/') {
		return t.paths.Home + below
	}
	if path.IsAbs(file) {
		return file
	}
	return path.Join(t.paths.Workspace, file)
}

// fileResult is the report of the tools that write files.
type fileResult struct {
	FilePath     string  `json:"filePath"`
	Content      *string `json:"content"`
	OriginalFile *string `json:"originalFile"`
	OldString    *string `json:"oldString"`
	NewString    *string `json:"newString"`
}

// resultContent returns the content of an ended tool call: the change of a file, or the result
// that the model received.
func (t *translator) resultContent(result block, report json.RawMessage) []runnerscripts.ToolCallContent {
	if !result.IsError && isObject(report) {
		var f fileResult
		if err := json.Unmarshal(report, &f); err == nil && f.FilePath != "" {
			file := t.absolute(f.FilePath)
			switch {
			case f.NewString != nil:
				return diff(file, f.OldString, *f.NewString)
			case f.Content != nil:
				return diff(file, f.OriginalFile, *f.Content)
			}
		}
	}
	var list []runnerscripts.ToolCallContent
	for _, b := range result.Content {
		if c, ok := contentOf(b); ok {
			list = append(list, runnerscripts.ToolCallContent{Type: "content", Content: &c})
		}
	}
	return list
}

func diff(file string, old *string, text string) []runnerscripts.ToolCallContent {
	return []runnerscripts.ToolCallContent{{Type: "diff", Path: file, OldText: old, NewText: text}}
}

// contentOf converts a content block.
func contentOf(b block) (runnerscripts.Content, bool) {
	switch {
	case b.Type == blockText && b.Text != "":
		return runnerscripts.Content{Type: "text", Text: b.Text}, true
	case b.Type == blockImage && b.Source != nil:
		return runnerscripts.Content{
			Type: "image", Data: b.Source.Data, MimeType: b.Source.MediaType, URI: b.Source.URL,
		}, true
	}
	return runnerscripts.Content{}, false
}

// plan returns the plan that a tool call writes, if the tool writes plans.
func plan(name string, raw json.RawMessage) (runnerscripts.Plan, bool) {
	if name != "TodoWrite" {
		return runnerscripts.Plan{}, false
	}
	var p runnerscripts.Plan
	for _, todo := range parseInput(raw).Todos {
		p.Entries = append(p.Entries, runnerscripts.PlanEntry{
			Content: todo.Content, Status: todo.Status,
		})
	}
	return p, true
}

func isObject(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && raw[0] == '{'
}

// exitCode moves the exit status of a failed command from the beginning of its output to its field.
func exitCode(call *runnerscripts.ToolCall) {
	if len(call.Content) == 0 || call.Content[0].Content == nil {
		return
	}
	text := call.Content[0].Content
	first, rest, _ := strings.Cut(text.Text, "\n")
	number, ok := strings.CutPrefix(first, "Exit code ")
	if n, err := strconv.Atoi(number); ok && err == nil {
		call.ExitCode, text.Text = n, rest
	}
}
