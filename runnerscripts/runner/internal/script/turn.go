package script

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// chunkWords is how many words a chunk has.
const chunkWords = 4

// turn is the answer to one prompt. Its IDs derive from its number in the conversation, so they
// are deterministic and unique.
type turn struct {
	c      *conversation
	query  string
	name   string
	fill   *strings.Replacer
	blocks int
	tools  int
	usage  runnerscripts.Usage
}

// play plays the turn. It returns how the turn ended, or the error that ended it.
func (t *turn) play(ctx context.Context, prompt string, attachments []runnerscripts.Attachment, script runnerscripts.ScenarioTurn) (runnerscripts.StopReason, error) {
	started := runnerscripts.QueryStarted{Prompt: prompt}
	for _, a := range attachments {
		started.Attachments = append(started.Attachments, a.Info())
	}
	err := t.record(time.Now(), runnerscripts.TypeQueryStarted, started)
	if err != nil {
		return "", err
	}
	t.usage.InputTokens += words(prompt)
	err = t.report(runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
		BlockID: t.block(), Content: runnerscripts.Content{Type: "text", Text: prompt},
	})
	for _, step := range script.Steps {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			err = t.step(ctx, step)
		}
	}
	if errors.Is(err, errMaxTurns) {
		return runnerscripts.StopMaxRequests, nil
	}
	return runnerscripts.StopEndTurn, err
}

func (t *turn) step(ctx context.Context, s runnerscripts.ScenarioStep) error {
	switch {
	case s.Text != "":
		return t.say(ctx, runnerscripts.TypeAgentMessage, t.fill.Replace(s.Text))
	case s.Thought != "":
		return t.say(ctx, runnerscripts.TypeAgentThought, t.fill.Replace(s.Thought))
	case s.Plan != nil:
		plan := runnerscripts.Plan{Entries: []runnerscripts.PlanEntry{}}
		for _, e := range s.Plan.Entries {
			e.Content = t.fill.Replace(e.Content)
			plan.Entries = append(plan.Entries, e)
		}
		return t.report(runnerscripts.TypePlan, plan)
	case s.Ask != nil:
		return t.use(ctx, *s.Ask, true)
	case len(s.Run) > 0, s.Write != nil:
		return t.use(ctx, s, false)
	case s.DelayMS > 0:
		return wait(ctx, time.Duration(s.DelayMS)*time.Millisecond)
	case s.Fail != nil:
		return s.Fail
	case s.Crash != 0:
		return CrashError(s.Crash)
	case len(s.Print) > 0:
		return t.c.cfg.Print(printed(s.Print))
	}
	return nil
}

// say emits a text in several chunks, and records it as one.
func (t *turn) say(ctx context.Context, typ runnerscripts.EventType, text string) error {
	block, start := t.block(), time.Now()
	var said strings.Builder
	for _, chunk := range chunks(text) {
		if ctx.Err() != nil {
			break
		}
		t.c.out.EmitAt(start, runnerscripts.MainConversation, typ, textChunk(block, chunk))
		said.WriteString(chunk)
	}
	t.usage.OutputTokens += words(said.String())
	if said.Len() == 0 {
		return context.Cause(ctx)
	}
	if err := t.record(start, typ, textChunk(block, said.String())); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// end reports and records how the turn ended, and returns the error of the query.
func (t *turn) end(done runnerscripts.QueryCompleted, err error) error {
	sum := t.c.used
	rerr := t.report(runnerscripts.TypeUsageUpdate, runnerscripts.UsageUpdate{
		Used: sum.InputTokens + sum.OutputTokens, Size: contextSize,
	})
	failed, isFailure := errors.AsType[*runnerscripts.ScriptFailure](err)
	switch {
	case err == nil:
		err = t.record(time.Now(), runnerscripts.TypeQueryCompleted, done)
	case isFailure:
		werr := t.record(time.Now(), runnerscripts.TypeQueryFailed, runnerscripts.QueryFailed{
			Code: failed.Code, Message: failed.Message, HTTPStatus: failed.HTTPStatus,
			DurationMS: done.DurationMS, Usage: done.Usage,
		})
		if werr != nil {
			err = werr
		}
	}
	if err == nil {
		err = rerr
	}
	return err
}

// report records an event and emits it, with the same time.
func (t *turn) report(typ runnerscripts.EventType, payload any) error {
	now := time.Now()
	if err := t.record(now, typ, payload); err != nil {
		return err
	}
	t.c.out.EmitAt(now, runnerscripts.MainConversation, typ, payload)
	return nil
}

// record writes a line of the history. If the request asks for raw lines, record also emits it.
func (t *turn) record(at time.Time, typ runnerscripts.EventType, payload any) error {
	raw, err := marshal(payload)
	if err != nil {
		return err
	}
	line := runnerscripts.Event{
		Type: typ, Payload: raw, ConversationID: runnerscripts.MainConversation, QueryID: t.query, Time: at.UTC(),
	}
	if t.c.raw {
		t.c.out.EmitAt(at, runnerscripts.MainConversation, runnerscripts.TypeRaw, line)
	}
	return t.c.hist.append(line)
}

func (t *turn) block() string {
	t.blocks++
	return t.name + "-block-" + strconv.Itoa(t.blocks)
}

func textChunk(block, text string) runnerscripts.ContentChunk {
	return runnerscripts.ContentChunk{
		BlockID: block, Content: runnerscripts.Content{Type: "text", Text: text},
	}
}

// chunks cuts a text before every fourth word. The concatenated chunks are the text.
func chunks(text string) []string {
	var out []string
	start, count, inWord := 0, 0, false
	for i, r := range text {
		space := unicode.IsSpace(r)
		if !space && !inWord {
			if count > 0 && count%chunkWords == 0 {
				out = append(out, text[start:i])
				start = i
			}
			count++
		}
		inWord = !space
	}
	return append(out, text[start:])
}

func words(s string) int64 { return int64(len(strings.Fields(s))) }

// printed returns the line for a print step.
func printed(raw json.RawMessage) []byte {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return []byte(s)
	}
	return raw
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
