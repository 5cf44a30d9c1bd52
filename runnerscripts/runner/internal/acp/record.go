package acp

import (
	"encoding/json"
	"errors"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// madeSession notes in the record that the agent has created a session.
type madeSession struct {
	SessionID string `json:"session_id"`
	Agent     string `json:"agent"`
	Version   string `json:"version,omitempty"`
}

// recorded closes the record together with the conversation.
type recorded struct {
	agent.Conversation
	recorder *record.Recorder
}

func (r recorded) Close() error { return errors.Join(r.Conversation.Close(), r.recorder.Close()) }

// readHistory reads the conversation to continue.
func readHistory(s runnerscripts.Session) (History, error) {
	var h History
	text, err := agent.ReadIfExists(record.File(s))
	if err != nil {
		return h, err
	}
	for l := range record.Lines(text) {
		switch {
		case l.Note != nil:
			var made madeSession
			if json.Unmarshal(l.Note, &made) == nil && made.SessionID != "" {
				h.SessionID = made.SessionID
			}
		case l.Type == runnerscripts.TypeUserMessage:
			h.Prompts++
		case l.Type == runnerscripts.TypeUsageUpdate:
			var u usageUpdate
			if json.Unmarshal(l.Payload, &u) == nil {
				if cost, ok := u.dollars(); ok {
					h.Cost = cost
				}
			}
		}
	}
	if h.Prompts == 0 {
		h.SessionID = "" // agents do not store a session without messages
	}
	return h, nil
}
