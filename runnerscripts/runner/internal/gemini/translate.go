package gemini

import (
	"cmp"
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// modeNotice starts a message chunk that reports a change of the program's mode instead of a part
// of the answer.
const modeNotice = "[MODE_UPDATE] "

// noSubject begins a thought that has no subject.
const noSubject = "****\n"

// translateUpdate converts an update to the format that other agents use.
func translateUpdate(u acp.Update) acp.Update {
	switch runnerscripts.EventType(u.Kind) {
	case runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought:
		return translateChunk(u)
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		return translateCall(u)
	}
	return u
}

func translateChunk(u acp.Update) acp.Update {
	var c runnerscripts.ContentChunk
	if json.Unmarshal(u.Raw, &c) != nil {
		return u // the caller reports it
	}
	if u.Kind == string(runnerscripts.TypeAgentThought) {
		c.Content.Text = strings.TrimPrefix(c.Content.Text, noSubject)
		return newUpdate(runnerscripts.TypeAgentThought, c)
	}
	mode, ok := strings.CutPrefix(c.Content.Text, modeNotice)
	if !ok || !slices.Contains([]string{modeDefault, modeAutoEdit, modeYOLO, modePlan}, mode) {
		return u
	}
	return newUpdate(runnerscripts.TypeModeUpdate, runnerscripts.ModeUpdate{CurrentModeID: mode})
}

func translateCall(u acp.Update) acp.Update {
	var call struct {
		runnerscripts.ToolCall
		Content []struct {
			runnerscripts.ToolCallContent
			Meta struct {
				Kind string `json:"kind"`
			} `json:"_meta"`
		} `json:"content"`
	}
	if json.Unmarshal(u.Raw, &call) != nil {
		return u
	}
	ended := call.Status == runnerscripts.ToolCompleted || call.Status == runnerscripts.ToolFailed
	var remark string
	for _, c := range call.Content {
		if c.Type == "content" && !ended { // a remark on the input
			if c.Content != nil {
				remark = c.Content.Text
			}
			continue
		}
		if c.Meta.Kind == "add" {
			c.OldText = nil
		}
		call.ToolCall.Content = append(call.ToolCall.Content, c.ToolCallContent)
	}
	call.Name = toolName(call.ToolCallID)
	if call.Name == shellTool && len(call.RawInput) == 0 && call.Title != "" { // the program reports no input; the title is the command
		input := map[string]string{"command": call.Title}
		if folder := folderOf(remark); folder != "" {
			input["dir_path"] = folder
		}
		if raw, err := json.Marshal(input); err == nil {
			call.RawInput = raw
		}
	}
	return newUpdate(runnerscripts.EventType(u.Kind), call.ToolCall)
}

func newUpdate(typ runnerscripts.EventType, payload any) acp.Update {
	raw, err := json.Marshal(payload)
	if err != nil {
		panic("a payload that was JSON is none: " + err.Error()) // cannot happen: it came from JSON
	}
	return acp.Update{Kind: string(typ), Raw: raw}
}

// toolName returns the tool name at the start of the ID of a call, NAME__REST, or "" if there is none. The rest begins with
// NAME_ unless the model's API has given the call an ID, so that a name with "__" is found too.
func toolName(callID string) string {
	for i := range callID {
		if name, rest := callID[:i], callID[i:]; strings.HasPrefix(rest, "__"+name+"_") && name != "" {
			return name
		}
	}
	return callID[:max(0, strings.LastIndex(callID, "__"))]
}

// toolCall is a tool call in a record.
type toolCall struct {
	ID            string          `json:"id"`
	Name          string          `json:"name"`
	Args          json.RawMessage `json:"args"`
	Result        json.RawMessage `json:"result"`
	Status        string          `json:"status"`
	Time          string          `json:"timestamp"`
	Description   string          `json:"description"`
	DisplayName   string          `json:"displayName"`
	ResultDisplay resultDisplay   `json:"resultDisplay"`

	raw     json.RawMessage // the call; nil if the file has none
	changed bool            // raw is not valid any more
}

// resultDisplay is what the program displays for a tool's result: a text, or a change of a file.
type resultDisplay struct {
	text            string
	FileName        string  `json:"fileName"`
	FilePath        string  `json:"filePath"`
	OriginalContent *string `json:"originalContent"`
	NewContent      string  `json:"newContent"`
	Result          string  `json:"result"` // of a subagent
	TerminateReason string  `json:"terminateReason"`
}

func (d *resultDisplay) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &d.text)
	}
	if len(data) == 0 || data[0] != '{' {
		return nil
	}
	type fields resultDisplay
	return json.Unmarshal(data, (*fields)(d))
}

func (d resultDisplay) content() []runnerscripts.ToolCallContent {
	switch {
	case d.text != "":
		return textContent(d.text)
	case d.FileName != "":
		c := runnerscripts.ToolCallContent{Type: "diff", Path: d.FilePath, NewText: d.NewContent}
		if c.Path == "" {
			c.Path = d.FileName
		}
		if d.OriginalContent != nil && *d.OriginalContent != "" {
			c.OldText = d.OriginalContent
		}
		return []runnerscripts.ToolCallContent{c}
	}
	return nil
}

func textContent(text string) []runnerscripts.ToolCallContent {
	return []runnerscripts.ToolCallContent{{
		Type: "content", Content: &runnerscripts.Content{Type: "text", Text: text},
	}}
}

// kindOf returns the kind of a built-in tool, as the program itself reports it.
func kindOf(tool string) runnerscripts.ToolKind {
	switch tool {
	case "write_file", "replace":
		return runnerscripts.ToolEdit
	case shellTool:
		return runnerscripts.ToolExecute
	case "read_file", "read_many_files", "read_mcp_resource", "list_background_processes", "read_background_output":
		return runnerscripts.ToolRead
	case "list_directory", "glob", "grep_search", "google_web_search", "list_mcp_resources":
		return runnerscripts.ToolSearch
	case "web_fetch":
		return runnerscripts.ToolFetch
	case "update_topic", subagentTool:
		return runnerscripts.ToolThink
	}
	return runnerscripts.ToolOther
}

// whole returns a recorded call as its live updates would have reported it.
func (c toolCall) whole(workspace string) runnerscripts.ToolCall {
	call := runnerscripts.ToolCall{
		ToolCallID: c.ID, Title: cmp.Or(c.Description, c.Name), Kind: kindOf(c.Name), Status: runnerscripts.ToolCompleted,
		Content: c.ResultDisplay.content(),
	}
	if c.Status != "success" {
		call.Status = runnerscripts.ToolFailed
	}
	var args struct {
		Command  string `json:"command"`
		FilePath string `json:"file_path"`
	}
	_ = json.Unmarshal(c.Args, &args) // other tools have other arguments
	switch {
	case c.Name == shellTool && args.Command != "":
		call.Title = args.Command
	case strings.HasPrefix(c.Name, "mcp_") && c.DisplayName != "":
		call.Title = c.DisplayName
	case args.FilePath != "":
		path := args.FilePath
		if !filepath.IsAbs(path) {
			path = filepath.Join(workspace, path)
		}
		call.Locations = []runnerscripts.Location{{Path: path}}
	}
	call.Name, call.RawInput, call.RawOutput = c.Name, c.Args, c.Result
	return c.withOutput(call)
}

// withOutput adds the output of a command to a call, and the failure if the exit status is not
// zero.
func (c toolCall) withOutput(call runnerscripts.ToolCall) runnerscripts.ToolCall {
	if c.Name != shellTool || c.Status != "success" {
		return call
	}
	if end, ok := endOfCommand(c.Result); ok {
		if end.output != "" {
			call.Content = textContent(end.output)
		}
		if end.exit != 0 {
			call.Status, call.ExitCode = runnerscripts.ToolFailed, end.exit
		}
	}
	return call
}

// rest returns what the live updates of a call omit.
func (c toolCall) rest() runnerscripts.ToolCall {
	return c.withOutput(runnerscripts.ToolCall{ToolCallID: c.ID, Name: c.Name, RawInput: c.Args, RawOutput: c.Result})
}

// rejected returns the failed call for a call that is recorded only by its result, without its input.
func (r functionResponse) rejected() *toolCall {
	var said struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(r.Response, &said)
	return &toolCall{ID: r.ID, Name: r.Name, Status: "error", ResultDisplay: resultDisplay{text: said.Error}}
}

// replay emits the conversation of a transcript, with the recorded times.
func replay(ctx context.Context, t runnerscripts.Transcript, workspace string, out agent.Sink) error {
	p := newPlayer(out, workspace)
	p.subs = newSubagents(t.Subagents)
	for _, m := range parse(t.Main).messages {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.play(m)
	}
	return nil
}

// player converts records to events.
type player struct {
	out       agent.Sink
	conv      string // the conversation; empty means the main one
	workspace string
	subs      subagents

	prompts  int
	promptID string
	blocks   int
	calls    map[string]bool // the reported calls
}

func newPlayer(out agent.Sink, workspace string) *player {
	return &player{out: out, workspace: workspace, calls: map[string]bool{}}
}

func (p *player) emit(at time.Time, typ runnerscripts.EventType, payload any) {
	p.out.EmitAt(at, cmp.Or(p.conv, runnerscripts.MainConversation), typ, payload)
}

// play reports a message.
func (p *player) play(m *message) {
	at, err := time.Parse(time.RFC3339, m.Time)
	if err != nil || m.hidden || m.dropped {
		return
	}
	if prompt, ok := m.prompt(); ok {
		p.prompts++
		p.promptID, p.blocks = p.conv+record.PromptID(p.prompts, prompt), 0
		p.say(at, runnerscripts.TypeUserMessage, prompt)
	}
	if m.Type != "gemini" {
		return // a notice of the program for the user of a terminal
	}
	for _, t := range m.Thoughts {
		p.say(at, runnerscripts.TypeAgentThought, t.text())
	}
	if text := m.Content.text(); text != "" {
		p.say(at, runnerscripts.TypeAgentMessage, text)
	}
	for _, c := range m.calls {
		if p.calls[c.ID] {
			continue
		}
		p.calls[c.ID] = true
		began, err := time.Parse(time.RFC3339, c.Time)
		if err != nil {
			began = at
		}
		p.emit(began, runnerscripts.TypeToolCall, c.whole(p.workspace))
		if p.conv == "" {
			tellSubagent(p.out, *c, p.workspace, &p.subs)
		}
	}
}

func (p *player) say(at time.Time, typ runnerscripts.EventType, text string) {
	p.emit(at, typ, runnerscripts.ContentChunk{
		BlockID: record.BlockID(p.promptID, p.blocks), Content: runnerscripts.Content{Type: "text", Text: text},
	})
	p.blocks++
}

// text returns the thought in the form in which the program reports it.
func (t thought) text() string {
	return strings.TrimPrefix("**"+t.Subject+"**\n"+t.Description, noSubject)
}
