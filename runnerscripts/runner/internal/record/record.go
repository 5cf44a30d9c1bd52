// Package record stores the conversations of agents whose own history has an unknown format. A
// file in the session's home folder has one emitted event a line, with its time, and notes of
// the driver between them.
package record

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// Line is a line of a record: an event, or a note.
type Line struct {
	Time    time.Time               `json:"time"`
	Type    runnerscripts.EventType `json:"type,omitempty"`
	Payload json.RawMessage         `json:"payload,omitempty"`
	Note    json.RawMessage         `json:"note,omitempty"`
}

// File returns the path of a session's record.
func File(s runnerscripts.Session) string {
	return filepath.Join(s.Paths.Home, ".agentenv", s.Agent.Name, s.SessionID+".jsonl")
}

// Recorder is a sink that records a conversation and passes it on. Its methods may be called
// from any goroutine.
type Recorder struct {
	next agent.Sink
	file string

	mu     sync.Mutex
	out    *os.File // nil before the first write and after Close
	failed bool
}

// New returns a recorder that passes events to next and records them in file, which it creates
// on the first write.
func New(next agent.Sink, file string) *Recorder { return &Recorder{next: next, file: file} }

// Emit is EmitAt with the current time.
func (r *Recorder) Emit(conv string, typ runnerscripts.EventType, payload any) {
	r.EmitAt(time.Now(), conv, typ, payload)
}

// EmitAt passes an event on, and records it if it belongs to the conversation. It passes on
// even events that it cannot record; after the first failure it also emits an error event.
func (r *Recorder) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	switch typ {
	case runnerscripts.TypeUserMessage, runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought,
		runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate, runnerscripts.TypePlan, runnerscripts.TypeUsageUpdate:
		raw, err := json.Marshal(payload)
		if err == nil {
			err = r.write(Line{Time: at, Type: typ, Payload: raw})
		}
		if err != nil {
			r.reportError(err)
		}
	}
	r.next.EmitAt(at, conv, typ, payload)
}

// Note records a value that is not an event.
func (r *Recorder) Note(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return r.write(Line{Time: time.Now(), Note: raw})
}

// Close closes the file. Later calls do nothing.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out == nil {
		return nil
	}
	err := r.out.Close()
	r.out = nil
	return err
}

func (r *Recorder) write(l Line) error {
	line, err := json.Marshal(l)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out == nil {
		if r.out, err = open(r.file); err != nil {
			return err
		}
	}
	_, err = r.out.Write(append(line, '\n'))
	return err
}

// open opens a record for appending, and terminates a last line that a crash has truncated.
func open(file string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := endLastLine(f); err != nil {
		_ = f.Close() // the other error is the reason
		return nil, err
	}
	return f, nil
}

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

// reportError reports once that the record is incomplete.
func (r *Recorder) reportError(err error) {
	r.mu.Lock()
	again := r.failed
	r.failed = true
	r.mu.Unlock()
	if !again {
		r.next.Emit(runnerscripts.MainConversation, runnerscripts.TypeError, runnerscripts.ErrorInfo{
			Code:    runnerscripts.FailInternal,
			Message: fmt.Sprintf("make room for the session's files: its transcript is not complete: %v", err),
		})
	}
}

// Lines returns the complete lines of a record; it skips lines truncated by a crash.
func Lines(text string) iter.Seq[Line] {
	return func(yield func(Line) bool) {
		for line := range strings.Lines(text) {
			var l Line
			if json.Unmarshal([]byte(line), &l) != nil {
				continue
			}
			if !yield(l) {
				return
			}
		}
	}
}

// Transcript reads the record of a session as its transcript. If out is not nil, it emits the
// recorded events with their times.
func Transcript(ctx context.Context, s runnerscripts.Session, out agent.Sink) (runnerscripts.Transcript, error) {
	text, err := agent.ReadIfExists(File(s))
	if err == nil && out != nil {
		err = Replay(ctx, text, out)
	}
	return runnerscripts.Transcript{Main: text}, err
}

// Replay emits the events of a record, each with its time.
func Replay(ctx context.Context, text string, out agent.Sink) error {
	for l := range Lines(text) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.Type != "" {
			out.EmitAt(l.Time, runnerscripts.MainConversation, l.Type, l.Payload)
		}
	}
	return nil
}

// PromptID returns the prefix of the IDs of a prompt's blocks: the prompt's number in the
// session, from 1, and a hash of its text. The hash distinguishes prompts with the same number,
// which happens after an agent has lost one.
func PromptID(number int, text string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return fmt.Sprintf("p%d-%08x", number, h.Sum32())
}

// BlockID returns the id of a block of a prompt. The prompt itself has the index 0.
func BlockID(promptID string, index int) string { return fmt.Sprintf("%s-%d", promptID, index) }
