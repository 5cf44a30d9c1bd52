package script

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
)

var _ handoff.Converter = (*driver)(nil)

// Convert writes the conversation of another agent as a history.
func (d *driver) Convert(s runnerscripts.Session, c handoff.Conversation) (runnerscripts.Transcript, error) {
	var text strings.Builder
	enc := runnerscripts.NewEncoder(&text)
	ids := handoff.NewIDs(s.SessionID, c)
	var err error
	line := func(at time.Time, typ runnerscripts.EventType, payload any) {
		raw, merr := marshal(payload)
		if err == nil {
			err = merr
		}
		if err == nil {
			err = enc.Encode(runnerscripts.Event{
				Type: typ, Payload: raw, ConversationID: runnerscripts.MainConversation, Time: at.UTC(),
			})
		}
	}
	for i, it := range c.Items {
		id := "before-" + ids.Hex("item", i, 16)
		switch it.Kind {
		case handoff.User:
			line(it.Time, runnerscripts.TypeQueryStarted, runnerscripts.QueryStarted{Prompt: it.Text})
			line(it.Time, runnerscripts.TypeUserMessage, textChunk(id, it.Text))
		case handoff.Agent:
			line(it.Time, runnerscripts.TypeAgentMessage, textChunk(id, it.Text))
		case handoff.Tool:
			call := runnerscripts.ToolCall{
				ToolCallID: id, Title: it.Call.Title, Name: it.Call.Name, Kind: it.Call.Kind, Status: runnerscripts.ToolCompleted,
				RawInput: it.Call.Input, Content: textContent(it.Call.Output),
			}
			if it.Call.Failed {
				call.Status = runnerscripts.ToolFailed
			}
			line(it.Time, runnerscripts.TypeToolCall, call)
		}
	}
	if err != nil {
		return runnerscripts.Transcript{}, fmt.Errorf("write the script agent's history: %w", err)
	}
	return runnerscripts.Transcript{Main: text.String()}, nil
}

// Restores returns RestoredConverted: the driver writes the history.
func (d *driver) Restores() runnerscripts.Restored { return runnerscripts.RestoredConverted }
