package claude

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// record is a line of a transcript. Many types are irrelevant here.
type record struct {
	messageLine
	ToolUseResult json.RawMessage `json:"toolUseResult"`
	IsAPIError    bool            `json:"isApiErrorMessage"`
	IsMeta        bool            `json:"isMeta"` // a note of the program to the model
	IsSidechain   bool            `json:"isSidechain"`
	IsSummary     bool            `json:"isCompactSummary"`
	PromptSource  string          `json:"promptSource"`
	TurnKey       string          `json:"turnAttributionKey"` // of a command that the user typed
	APIBlockIndex *int            `json:"apiBlockIndex"`
	Origin        struct {
		Kind string `json:"kind"`
	} `json:"origin"`
}

// originTask marks the program's message about the end of a background subagent.
const originTask = "task-notification"

// subagentMeta is the metadata file of a subagent's transcript.
type subagentMeta struct {
	AgentType   string `json:"agentType"`
	Description string `json:"description"`
	ToolUseID   string `json:"toolUseId"`
}

// history replays a transcript.
type history struct {
	*translator
	subs map[string]storedSubagent // by the tool call that started it
}

type storedSubagent struct {
	runnerscripts.SubagentTranscript
	meta subagentMeta
}

// replay emits the conversation of a transcript, with the recorded times.
func replay(ctx context.Context, t runnerscripts.Transcript, tr *translator) error {
	h := history{translator: tr, subs: map[string]storedSubagent{}}
	byID := map[string]runnerscripts.SubagentTranscript{}
	for _, s := range t.Subagents {
		byID[s.ID] = s
		sub := storedSubagent{SubagentTranscript: s}
		if json.Unmarshal([]byte(s.Meta), &sub.meta) == nil && sub.meta.ToolUseID != "" {
			h.subs[sub.meta.ToolUseID] = sub
		}
	}
	h.link(t.Main, byID)
	return h.conversation(ctx, runnerscripts.MainConversation, t.Main)
}

// link finds the calls of subagents without a metadata file: the result of the call names the
// subagent.
func (h history) link(transcript string, byID map[string]runnerscripts.SubagentTranscript) {
	_ = eachRecord(transcript, func(r record) error {
		var report subagentReport
		if !isObject(r.ToolUseResult) || json.Unmarshal(r.ToolUseResult, &report) != nil {
			return nil
		}
		stored, known := byID[report.AgentID]
		for _, b := range r.Message.Content {
			if _, linked := h.subs[b.ToolUseID]; known && !linked && b.Type == blockToolResult {
				h.subs[b.ToolUseID] = storedSubagent{SubagentTranscript: stored}
			}
		}
		return nil
	})
}

// conversation emits one transcript. A subagent's transcript follows the call that started it.
func (h history) conversation(ctx context.Context, conv, transcript string) error {
	return eachRecord(transcript, func(r record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch r.Type {
		case "user":
			h.user(conv, r)
		case "assistant":
			if !r.IsAPIError {
				return h.assistantRecord(ctx, conv, r)
			}
		}
		return nil
	})
}

func (h history) assistantRecord(ctx context.Context, conv string, r record) error {
	index := -1
	if r.APIBlockIndex != nil {
		index = *r.APIBlockIndex
	}
	h.assistant(r.Timestamp, conv, r.Message, index)
	if conv == runnerscripts.MainConversation && r.Message.Model != syntheticModel {
		h.contextUse(r.Timestamp, r.Message.Usage)
	}
	for _, b := range r.Message.Content {
		sub, ok := h.subs[b.ID]
		if b.Type != blockToolUse || !ok {
			continue
		}
		in := parseInput(b.Input)
		delete(h.subs, b.ID)
		h.startSubagent(r.Timestamp, conv, runnerscripts.SubagentStarted{
			ToolCallID: b.ID, AgentID: sub.ID, Prompt: in.Prompt,
			Type: firstOf(sub.meta.AgentType, in.SubagentType), Description: firstOf(sub.meta.Description, in.Description),
		})
		if err := h.conversation(ctx, b.ID, sub.Transcript); err != nil {
			return err
		}
	}
	return nil
}

// user translates a user record: tool results, prompts, and notes by the program itself.
func (h history) user(conv string, r record) {
	for _, b := range r.Message.Content {
		if b.Type == blockToolResult {
			h.toolResult(r.Timestamp, conv, b, r.ToolUseResult)
		}
	}
	switch {
	case r.Origin.Kind == originTask:
		h.taskEnded(r)
	case r.IsMeta, r.IsSummary, r.IsSidechain, r.PromptSource == "system":
	case conv == runnerscripts.MainConversation && !isInterruptNote(r.Message.Content) && !r.isNote():
		h.userText(r.Timestamp, conv, r.UUID, asTyped(r.Message.Content))
	}
}

// isNote reports whether a user message was written by the program when one of its own commands
// ran: the output, or the command for a change of the model.
func (r record) isNote() bool {
	text := joinText(r.Message.Content)
	return strings.HasPrefix(text, "<local-command-std") || r.TurnKey == "" && tagged(text, "command-name") == "/model"
}

// asTyped returns a prompt as the user wrote it. The program stores slash commands with tags.
func asTyped(c content) content {
	if len(c) != 1 || !strings.HasPrefix(c[0].Text, "<command-message>") && !strings.HasPrefix(c[0].Text, "<command-name>") {
		return c
	}
	name := tagged(c[0].Text, "command-name")
	if name == "" {
		return c
	}
	return content{{Type: blockText, Text: strings.TrimSpace(name + " " + tagged(c[0].Text, "command-args"))}}
}

// isInterruptNote reports whether the program wrote the text because of an interrupt.
func isInterruptNote(c content) bool {
	return len(c) == 1 && (c[0].Text == "[Request interrupted by user]" ||
		c[0].Text == "[Request interrupted by user for tool use]")
}

// taskEnded ends a background subagent. The record is a text with tags for the model.
func (h history) taskEnded(r record) {
	text := joinText(r.Message.Content)
	var ms int64
	_, _ = fmt.Sscan(tagged(text, "duration_ms"), &ms) // zero if it is not said
	h.endSubagent(r.Timestamp, tagged(text, "tool-use-id"), runnerscripts.SubagentCompleted{
		Status: subagentStatus(tagged(text, "status")), Output: tagged(text, "result"), DurationMS: ms,
	})
}

// tagged returns the text between the first opening and the last closing tag.
func tagged(text, tag string) string {
	_, rest, ok := strings.Cut(text, "<"+tag+">")
	end := strings.LastIndex(rest, "</"+tag+">")
	if !ok || end < 0 {
		return ""
	}
	return rest[:end]
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// eachRecord reads a transcript. It skips invalid lines, such as a last line that a crash has
// truncated.
func eachRecord(transcript string, handle func(record) error) error {
	lines := runnerscripts.NewLineReader(strings.NewReader(transcript), 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the transcript: %w", err)
		}
		var r record
		if json.Unmarshal(line, &r) != nil {
			continue
		}
		if err := handle(r); err != nil {
			return err
		}
	}
}
