package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/agentenv-dev/agentenv/internal/boundedmap"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// printer shows the events of a run.
type printer interface {
	event(ev runnerscripts.Event) error
	// question shows a prompt to a person. Until answered is called nothing else of the
	// agent is shown below it.
	question(about prompt)
	// again says why an answer is none; only the line that awaits one is shown again.
	again(problem error)
	answered()
	// denies says that requests are denied because nobody is asked.
	denies()
	// finish prints what was held back and ends the last line.
	finish() error
}

func (a *app) newPrinter(asJSON bool) printer {
	people := &peoplePrinter{out: a.out, err: a.err, said: said{out: a.out}, doing: doing{status: a.status}}
	people.tools.Max, people.requests.Max = maxRemembered, maxRemembered
	if asJSON {
		return &jsonPrinter{peoplePrinter: people, enc: runnerscripts.NewEncoder(a.out)}
	}
	a.status.beforeDrawing(people.showSaid)
	return people
}

// newTranscriptPrinter also shows what the user said.
func (a *app) newTranscriptPrinter(asJSON bool) printer {
	p := a.newPrinter(asJSON)
	if people, ok := p.(*peoplePrinter); ok {
		people.user = true
	}
	return p
}

// jsonPrinter prints events as JSON lines; what is for people goes to standard
// error.
type jsonPrinter struct {
	*peoplePrinter
	enc *runnerscripts.Encoder
}

func (p *jsonPrinter) event(ev runnerscripts.Event) error { return p.enc.Encode(ev) }

func (p *jsonPrinter) finish() error { return nil }

// peoplePrinter prints what a person wants to follow: what the agent says to
// standard output, everything about the run to standard error.
type peoplePrinter struct {
	requests boundedmap.Map[string] // titles of what waits for permission
	denying  bool                   // requests are denied because nobody is asked
	mu       sync.Mutex
	asked    *prompt               // the question that stands
	held     []runnerscripts.Event // what has happened since
	heldSize int                   // of their payloads
	out, err *output
	user     bool // show the user's messages, too
	block    string
	said     said
	doing    doing
	failure  string // an error not yet printed: the query's failure may say the same
	tools    boundedmap.Map[runnerscripts.ToolCall]
}

// maxRemembered is how many bytes a printer remembers of tool calls, and of requests
// for permission.
const maxRemembered = 16 << 20

func (p *peoplePrinter) event(ev runnerscripts.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked == nil {
		err := p.show(ev)
		p.doing.event(ev)
		return err
	}
	p.held = append(p.held, ev)
	p.heldSize += len(ev.Payload)
	if len(p.held) < mostHeld && p.heldSize < maxRemembered {
		return nil
	}
	err := p.release()
	p.ask()
	return err
}

// show prints an event.
func (p *peoplePrinter) show(ev runnerscripts.Event) error {
	if ev.Type != runnerscripts.TypeQueryFailed {
		p.printFailure()
	}
	if ev.ConversationID != "" && ev.ConversationID != runnerscripts.MainConversation {
		return p.subagent(ev)
	}
	switch ev.Type {
	case runnerscripts.TypeUserMessage:
		return p.userMessage(ev)
	case runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought:
		return p.chunk(ev)
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		return p.tool(ev)
	case runnerscripts.TypePlan:
		return p.plan(ev)
	case runnerscripts.TypePermissionRequest, runnerscripts.TypePermissionResolved:
		return p.permission(ev)
	case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
		return p.end(ev)
	case runnerscripts.TypeLog, runnerscripts.TypeError, runnerscripts.TypeEnvironmentError:
		return p.diagnostic(ev)
	case runnerscripts.TypeTranscriptRestored:
		return p.restored(ev)
	}
	return nil
}

// restored tells how well an agent continues the conversation of another one.
func (p *peoplePrinter) restored(ev runnerscripts.Event) error {
	r, err := runnerscripts.Payload[runnerscripts.TranscriptRestored](ev)
	if err != nil || r.From == "" {
		return nil
	}
	text := "continues the conversation of " + r.From + ": "
	switch r.Way {
	case runnerscripts.RestoredNative:
		text += "the agent has imported it"
	case runnerscripts.RestoredConverted:
		text += "it was converted"
	default:
		text += "the agent gets a summary of it"
	}
	if r.Reason != "" {
		text += ", because it could not be given more: " + r.Reason
	}
	if err := p.endLine(); err != nil {
		return err
	}
	return p.err.println(dim(text))
}

// chunk prints a piece of a message as it comes.
func (p *peoplePrinter) chunk(ev runnerscripts.Event) error {
	c, err := runnerscripts.Payload[runnerscripts.ContentChunk](ev)
	if err != nil || c.Content.Text == "" {
		return nil
	}
	known := p.block == c.BlockID
	if c.Snapshot && known {
		return p.said.show() // it came piece by piece
	}
	if !known {
		if err := p.endLine(); err != nil {
			return err
		}
		p.block = c.BlockID
	}
	return p.said.add(c.Content.Text, ev.Type == runnerscripts.TypeAgentThought)
}

// showSaid shows what was said so far, where the agent pauses.
func (p *peoplePrinter) showSaid() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked == nil {
		_ = p.said.show() // the next event fails, too
	}
}

// userMessage prints what the user said, where it is not known anyway.
func (p *peoplePrinter) userMessage(ev runnerscripts.Event) error {
	c, err := runnerscripts.Payload[runnerscripts.ContentChunk](ev)
	if err != nil || !p.user {
		return nil
	}
	return p.line(bold("> " + c.Content.Text))
}

// tool prints a tool call when it starts, and how it ended.
func (p *peoplePrinter) tool(ev runnerscripts.Event) error {
	u, err := runnerscripts.Payload[runnerscripts.ToolCall](ev)
	if err != nil {
		return nil
	}
	call, known := p.tools.Get(u.ToolCallID)
	if u.Title != "" {
		call.Title = u.Title
	}
	if u.Content != nil {
		call.Content = u.Content
	}
	p.tools.Put(u.ToolCallID, call, sizeOf(call))
	if !known || u.Title != "" && ev.Type == runnerscripts.TypeToolCall {
		if err := p.line(cyan("→ "), bold(indented(firstOf(call.Title, u.Name)))); err != nil {
			return err
		}
	}
	switch u.Status {
	case runnerscripts.ToolCompleted:
		return p.result(call, dim)
	case runnerscripts.ToolFailed:
		return p.result(call, red)
	}
	return nil
}

// sizeOf is how many bytes of memory what is shown of a tool call takes.
func sizeOf(call runnerscripts.ToolCall) int {
	size := len(call.Title)
	for _, c := range call.Content {
		size += int(unsafe.Sizeof(c)) + len(c.Path) + len(c.NewText)
		if c.OldText != nil {
			size += len(*c.OldText)
		}
		if c.Content != nil {
			size += int(unsafe.Sizeof(*c.Content)) + len(c.Content.Text) + len(c.Content.Data) + len(c.Content.URI)
		}
	}
	return size
}

// resultLines is how much of a tool's output is shown.
const resultLines = 12

func (p *peoplePrinter) result(call runnerscripts.ToolCall, paint func(string) span) error {
	shown, more := 0, 0
	for _, c := range call.Content {
		for l := range rows(c, paint) {
			if shown == resultLines {
				more++
				continue
			}
			shown++
			if err := p.line(plain("  "), l); err != nil {
				return err
			}
		}
	}
	if more > 0 {
		return p.line(plain("  "), paint("... "+plural(more, "more line")))
	}
	return nil
}

// rows are the lines of what a tool shows. Of a change they are the old ones and the
// new ones.
func rows(c runnerscripts.ToolCallContent, paint func(string) span) iter.Seq[span] {
	return func(yield func(span) bool) {
		all := func(text, mark string, paint func(string) span) bool {
			for l := range strings.Lines(text) {
				if !yield(paint(mark + strings.TrimRight(l, "\r\n"))) {
					return false
				}
			}
			return true
		}
		switch {
		case c.Type == "diff":
			if c.OldText == nil || all(*c.OldText, "- ", red) {
				all(c.NewText, "+ ", green)
			}
		case c.Content != nil:
			all(c.Content.Text, "", paint)
		}
	}
}

func (p *peoplePrinter) plan(ev runnerscripts.Event) error {
	plan, err := runnerscripts.Payload[runnerscripts.Plan](ev)
	if err != nil {
		return nil
	}
	for _, e := range plan.Entries {
		mark := "[ ]"
		switch e.Status {
		case "completed":
			mark = "[x]"
		case "in_progress":
			mark = "[>]"
		}
		if err := p.line(dim(mark + " " + indented(e.Content))); err != nil {
			return err
		}
	}
	return nil
}

// subagent shows what a subagent does, not what it says.
func (p *peoplePrinter) subagent(ev runnerscripts.Event) error {
	if ev.Type != runnerscripts.TypeToolCall {
		return nil
	}
	u, err := runnerscripts.Payload[runnerscripts.ToolCall](ev)
	if err != nil {
		return nil
	}
	return p.line(dim("  · " + indented(firstOf(u.Title, u.Name))))
}

func (p *peoplePrinter) end(ev runnerscripts.Event) error {
	if err := p.endLine(); err != nil {
		return err
	}
	if ev.Type == runnerscripts.TypeQueryFailed {
		f, err := runnerscripts.Payload[runnerscripts.QueryFailed](ev)
		if err != nil {
			return nil
		}
		if strings.Contains(p.failure, f.Message) {
			p.failure = ""
		}
		p.printFailure()
		return p.err.println(red("failed: " + f.Message))
	}
	c, err := runnerscripts.Payload[runnerscripts.QueryCompleted](ev)
	if err != nil {
		return nil
	}
	return p.err.println(dim(summary(c)))
}

// summary is one line about a finished query.
func summary(c runnerscripts.QueryCompleted) string {
	s := fmt.Sprintf("done in %.1f s", time.Duration(c.DurationMS*int64(time.Millisecond)).Seconds())
	if c.StopReason != runnerscripts.StopEndTurn {
		s = fmt.Sprintf("stopped (%s) after %.1f s", c.StopReason, time.Duration(c.DurationMS*int64(time.Millisecond)).Seconds())
	}
	if in := c.Usage.TotalInput(); in+c.Usage.OutputTokens > 0 {
		s += fmt.Sprintf(", %s in, %d out", plural(in, "token"), c.Usage.OutputTokens)
	}
	if c.Usage.CostUSD > 0 {
		s += fmt.Sprintf(", $%.4f", c.Usage.CostUSD)
	}
	return s
}

func (p *peoplePrinter) diagnostic(ev runnerscripts.Event) error {
	var d struct{ Level, Message string }
	if json.Unmarshal(ev.Payload, &d) != nil || d.Message == "" || d.Level == "debug" || d.Level == "info" {
		return nil
	}
	if err := p.endLine(); err != nil {
		return err
	}
	if ev.Type != runnerscripts.TypeLog {
		p.failure = d.Message
		return nil
	}
	return p.err.println(dim(firstOf(d.Level, "error") + ": " + d.Message))
}

// printFailure prints the error that was held back.
func (p *peoplePrinter) printFailure() {
	if p.failure != "" {
		_ = p.err.println(dim("error: " + p.failure))
		p.failure = ""
	}
}

func (p *peoplePrinter) finish() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = nil
	p.doing.nothing()
	err := p.release()
	p.printFailure()
	return errors.Join(err, p.endLine())
}

// line prints a line of its own.
func (p *peoplePrinter) line(text ...span) error {
	if err := p.endLine(); err != nil {
		return err
	}
	p.block = ""
	return p.out.println(text...)
}

// endLine shows what was said, and ends its last line.
func (p *peoplePrinter) endLine() error { return p.said.end() }

// indented lets the further lines of a text begin below its first.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }

// plural is a number of things.
func plural[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
