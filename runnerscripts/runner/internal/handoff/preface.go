package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The tags around a summary, which separate it from the user's text.
const (
	prefaceStart = "<conversation_so_far "
	prefaceEnd   = "</conversation_so_far>\n\n"
)

// prefaceFile returns the path of the summary that the agent has not received yet.
func prefaceFile(s runnerscripts.Session) string {
	return filepath.Join(s.Paths.Home, ".agentenv", s.Agent.Name, s.SessionID+".before")
}

func writePreface(s runnerscripts.Session, text string) error {
	return agent.RestoreFile(prefaceFile(s), text)
}

func removePreface(s runnerscripts.Session) error {
	err := os.Remove(prefaceFile(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// WithPreface returns a conversation that sends the summary written by SetUp, if any, before
// the first prompt.
func WithPreface(c agent.Conversation, s runnerscripts.Session) agent.Conversation {
	return prefaced{Conversation: c, session: s}
}

type prefaced struct {
	agent.Conversation
	session runnerscripts.Session
}

// Prompt runs a query, with a pending summary before its text.
func (p prefaced) Prompt(ctx context.Context, id, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	before, err := agent.ReadIfExists(prefaceFile(p.session))
	if err != nil {
		return runnerscripts.QueryCompleted{}, err
	}
	if before == "" || strings.HasPrefix(text, "/") { // a slash command must come first
		return p.Conversation.Prompt(ctx, id, text, attachments...)
	}
	done, err := p.Conversation.Prompt(ctx, id, before+text, attachments...)
	if err == nil && done.StopReason != runnerscripts.StopCancelled { // otherwise the agent may have forgotten the summary
		err = removePreface(p.session)
	}
	return done, err
}

// WithoutPreface removes the summary from the payload of an event: the user did not write it.
func WithoutPreface(typ runnerscripts.EventType, payload any) any {
	if typ != runnerscripts.TypeUserMessage {
		return payload
	}
	switch p := payload.(type) {
	case runnerscripts.ContentChunk:
		p.Content.Text = afterPreface(p.Content.Text)
		return p
	case json.RawMessage:
		var c runnerscripts.ContentChunk
		if !strings.Contains(string(p), "conversation_so_far") || json.Unmarshal(p, &c) != nil {
			return payload
		}
		return WithoutPreface(typ, c)
	}
	return payload
}

func afterPreface(text string) string {
	if !strings.HasPrefix(text, prefaceStart) {
		return text
	}
	if _, words, ok := strings.Cut(text, prefaceEnd); ok {
		return words
	}
	return text
}
