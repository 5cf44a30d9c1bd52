package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// outputLine is a JSON line of an executor: the end of a turn, or an event.
type outputLine struct {
	Type    string          `json:"type"`
	Result  json.RawMessage `json:"result"`
	Payload json.RawMessage `json:"payload"`
}

// read reads the program's output, line by line. It keeps empty lines, which are part of a one_shot
// executor's answer.
func (c *conversation) read(r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		if len(line)+len(piece) > runnerscripts.DefaultMaxLine {
			return fmt.Errorf("%w: a line is longer than %d bytes; print less on a line", primitives.ErrLimit, runnerscripts.DefaultMaxLine)
		}
		line = append(line, piece...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if len(line) > 0 {
			c.handle(bytes.TrimSuffix(line, []byte("\n")))
		}
		line = line[:0]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// handle handles a line of the program. It runs on the reader's goroutine, one line at a time.
func (c *conversation) handle(line []byte) {
	c.heard.Store(time.Now().UnixNano())
	if c.raw {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeRaw, agent.RawLine(line))
	}
	c.mu.Lock()
	q := c.query
	c.mu.Unlock()
	var l outputLine
	err := json.Unmarshal(line, &l)
	ends := err == nil && l.Type == executor.TypeTurnComplete
	switch {
	case q == nil && !ends:
		agent.EmitLine(c.out, "the executor printed a line without a prompt", line, errors.New("print only from a prompt to its turn_complete"))
	case ends && !c.complete(q, l.Result):
		agent.EmitLine(c.out, "the executor completed a turn that was over", line,
			errors.New("print one turn_complete for each prompt; it is started again before the next one"))
	case ends:
	case err == nil && l.Type != "" && l.Payload != nil:
		c.event(q, l)
	case c.profile.Lifecycle == executor.Persistent && len(line) == 0:
	case c.profile.Lifecycle == executor.Persistent:
		agent.EmitUnreadable(c.out, "the executor", line, errors.New("it is no event and no end of a turn"))
	default:
		c.say(q, strings.ToValidUTF8(string(line), "\uFFFD")+"\n")
	}
}

// complete handles the end of a turn. The result is the answer unless it is empty. It returns false
// if no turn is running.
func (c *conversation) complete(q *query, result json.RawMessage) bool {
	c.mu.Lock()
	if q == nil || q.completed {
		c.stray = true
		c.mu.Unlock()
		return false
	}
	c.mu.Unlock()
	var text string
	if err := json.Unmarshal(result, &text); err != nil {
		text, q.result = string(result), bytes.Clone(result) // an object, say
	}
	if text != "" && text != "null" {
		q.open = false
		c.mu.Lock()
		q.answer = nil // the result alone counts
		c.mu.Unlock()
		c.say(q, text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q.completed = true
	close(q.done)
	return true
}

// event emits an event of the executor, and assigns IDs to text chunks.
func (c *conversation) event(q *query, l outputLine) {
	if !utf8.Valid(l.Payload) {
		agent.EmitUnreadable(c.out, "the executor", l.Payload, errors.New("it is not UTF-8"))
		return
	}
	typ := runnerscripts.EventType(l.Type)
	switch typ {
	case runnerscripts.TypeAgentMessage:
		var chunk runnerscripts.ContentChunk
		if err := json.Unmarshal(l.Payload, &chunk); err != nil {
			agent.EmitUnreadable(c.out, "the executor", l.Payload, err)
			return
		}
		c.say(q, chunk.Content.Text)
	case runnerscripts.TypeAgentThought:
		var chunk runnerscripts.ContentChunk
		if err := json.Unmarshal(l.Payload, &chunk); err != nil {
			agent.EmitUnreadable(c.out, "the executor", l.Payload, err)
			return
		}
		q.open = false
		c.chunk(q, typ, chunk.Content.Text)
		q.open = false
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate, runnerscripts.TypePlan,
		runnerscripts.TypeUsageUpdate, runnerscripts.TypeLog:
		q.open = false
		c.out.Emit(runnerscripts.MainConversation, typ, l.Payload)
	default:
		agent.EmitUnreadable(c.out, "the executor", l.Payload, fmt.Errorf("an executor has no events of the type %q", l.Type))
	}
}

// say reports a piece of the answer.
func (c *conversation) say(q *query, text string) {
	if len(c.profile.OutputSchema) > 0 {
		c.mu.Lock()
		if len(q.answer) <= maxResult {
			q.answer = append(q.answer, text...)
		}
		c.mu.Unlock()
	}
	c.chunk(q, runnerscripts.TypeAgentMessage, text)
}

func (c *conversation) chunk(q *query, typ runnerscripts.EventType, text string) {
	if !q.open {
		q.blocks++
		q.open = true
	}
	c.out.Emit(runnerscripts.MainConversation, typ, runnerscripts.ContentChunk{
		BlockID: record.BlockID(q.promptID, q.blocks-1), Content: runnerscripts.Content{Type: "text", Text: text},
	})
}
