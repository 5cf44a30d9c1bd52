package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The history of an agent that nobody knows is in files that nobody knows, so the
// driver keeps a record of its own: one event of the conversation a line, with
// its time, and a line for each session that the agent has made.
type recordLine struct {
	Time    time.Time               `json:"time"`
	Type    runnerscripts.EventType `json:"type,omitempty"`
	Payload json.RawMessage         `json:"payload,omitempty"`
	Session *recordedSession        `json:"session,omitempty"`
}

// recordedSession is a session of the agent.
type recordedSession struct {
	ID      string `json:"id"`
	Agent   string `json:"agent"`
	Version string `json:"version,omitempty"`
}

func recordFile(s runnerscripts.Session) string {
	return filepath.Join(s.Paths.Home, ".agentenv", "acp", s.SessionID+".jsonl")
}

// recorder is a sink that writes the conversation down as it passes it on.
type recorder struct {
	agent.Sink
	file string

	mu     sync.Mutex
	out    *os.File
	failed bool
}

func (r *recorder) Emit(conv string, typ runnerscripts.EventType, payload any) {
	r.EmitAt(time.Now(), conv, typ, payload)
}

func (r *recorder) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	switch typ {
	case runnerscripts.TypeUserMessage, runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought,
		runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate, runnerscripts.TypePlan, runnerscripts.TypeUsageUpdate:
		if err := r.record(at, typ, payload); err != nil {
			r.complain(err)
		}
	}
	r.Sink.EmitAt(at, conv, typ, payload)
}

func (r *recorder) record(at time.Time, typ runnerscripts.EventType, payload any) error {
	raw, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	return r.write(recordLine{Time: at, Type: typ, Payload: raw})
}

// began notes a session that the agent has made.
func (r *recorder) began(id, program, version string) error {
	return r.write(recordLine{Time: time.Now(), Session: &recordedSession{ID: id, Agent: program, Version: version}})
}

func (r *recorder) write(l recordLine) error {
	line, err := json.Marshal(l)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out == nil {
		if err := os.MkdirAll(filepath.Dir(r.file), 0o700); err != nil {
			return err
		}
		r.out, err = os.OpenFile(r.file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		if err := endLastLine(r.out); err != nil {
			return err
		}
	}
	_, err = r.out.Write(append(line, '\n'))
	return err
}

// endLastLine ends half a line, which a crash may have left.
func endLastLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	if last[0] != '\n' {
		_, err = f.WriteString("\n")
	}
	return err
}

// complain reports, once, that the record is not complete.
func (r *recorder) complain(err error) {
	r.mu.Lock()
	again := r.failed
	r.failed = true
	r.mu.Unlock()
	if !again {
		r.Sink.Emit(runnerscripts.MainConversation, runnerscripts.TypeError, runnerscripts.ErrorInfo{
			Code:    runnerscripts.FailInternal,
			Message: fmt.Sprintf("make room for the session's files: its transcript is not complete: %v", err),
		})
	}
}

func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out == nil {
		return nil
	}
	err := r.out.Close()
	r.out = nil
	return err
}

// recorded is a conversation whose record is closed with it.
type recorded struct {
	agent.Conversation
	recorder *recorder
}

func (r recorded) Close() error { return errors.Join(r.Conversation.Close(), r.recorder.close()) }

// readHistory tells what there is to go on with.
func readHistory(s runnerscripts.Session) (History, error) {
	var h History
	text, err := agent.ReadIfExists(recordFile(s))
	if err != nil {
		return h, err
	}
	for l := range recordLines(text) {
		switch {
		case l.Session != nil:
			h.SessionID = l.Session.ID
		case l.Type == runnerscripts.TypeUserMessage:
			h.Prompts++
		}
	}
	if h.Prompts == 0 {
		h.SessionID = "" // nothing was said: agents do not keep such a session
	}
	return h, nil
}

// recordLines are the whole lines of a record.
func recordLines(text string) func(yield func(recordLine) bool) {
	return func(yield func(recordLine) bool) {
		for line := range strings.Lines(text) {
			var l recordLine
			if json.Unmarshal([]byte(line), &l) != nil {
				continue // cut by a crash
			}
			if !yield(l) {
				return
			}
		}
	}
}

// replay emits the events of a record, each with its time.
func replay(ctx context.Context, text string, out agent.Sink) error {
	for l := range recordLines(text) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.Type != "" {
			out.EmitAt(l.Time, runnerscripts.MainConversation, l.Type, l.Payload)
		}
	}
	return nil
}
