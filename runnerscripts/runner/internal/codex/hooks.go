package codex

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// hookEvents returns the events for which Codex has hooks. Events shared with Claude Code have
// the same names.
func hookEvents() []string {
	return []string{
		"SessionStart", "UserPromptSubmit", "PreModelRequest", "PostModelRequest", "PreToolUse", "PermissionRequest",
		"PostToolUse", "PreCompact", "PostCompact", "SubagentStart", "SubagentStop", "Stop", "Interrupt", "SessionEnd",
	}
}

type hookGroup struct {
	Matcher string        `json:"matcher,omitempty"`
	Hooks   []hookCommand `json:"hooks"`
}

type hookCommand struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout,omitempty"` // in seconds
}

// hooksText returns the content of Codex's hooks.json, or "" if there are no hooks.
func hooksText(p runnerscripts.Profile) string {
	events := map[string][]hookGroup{}
	add := func(h runnerscripts.Hook) {
		events[h.Event] = append(events[h.Event], hookGroup{
			Matcher: h.Matcher,
			Hooks:   []hookCommand{{Type: "command", Command: h.Command, Timeout: h.TimeoutSeconds}},
		})
	}
	for _, h := range p.Hooks {
		add(h)
	}
	if toolRulesOf(p).noPatches {
		add(runnerscripts.Hook{Event: "PreToolUse", Matcher: "^" + toolPatch + "$", Command: "echo this tool is denied >&2; exit 2"})
	}
	if len(events) == 0 {
		return ""
	}
	return string(jsonOf(map[string]any{"hooks": events}))
}

// hookNote reports a hook that has run.
type hookNote struct {
	note
	Run struct {
		Event   string `json:"eventName"`
		Status  string `json:"status"`
		Entries []struct {
			Text string `json:"text"`
		} `json:"entries"`
	} `json:"run"`
}

// hookRan reports a hook that failed or changed what the agent does.
func (c *conversation) hookRan(n hookNote, raw json.RawMessage) {
	levels := map[string]string{"failed": "warn", "blocked": "info", "stopped": "info"}
	level, ok := levels[n.Run.Status]
	if !ok {
		return
	}
	var said []string
	for _, e := range n.Run.Entries {
		said = append(said, e.Text)
	}
	c.out.Emit(c.conv(n.note), runnerscripts.TypeLog, runnerscripts.Log{
		Level: level, Message: fmt.Sprintf("a hook for %s has %s: %s", n.Run.Event, n.Run.Status, strings.Join(said, "; ")), Data: raw,
	})
}
