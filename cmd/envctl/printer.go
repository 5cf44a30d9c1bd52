package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/boundedmap"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// printer prints the events of a run.
type printer interface {
	event(ev runnerscripts.Event) error
	// question shows a prompt to the user. Until answered is called, the agent's output is held
	// back.
	question(about prompt)
	// again says why an answer is invalid, and shows only the input line again.
	again(problem error)
	answered()
	// denies says that a request is denied without asking a user, and which flags would have allowed it.
	denies(request, flags string)
	// finish prints the events that were held back and ends the last line.
	finish() error
}

func (a *app) newPrinter(asJSON bool) printer {
	people := &textPrinter{out: a.out, err: a.err, said: said{out: a.out}, doing: doing{status: a.status}}
	people.tools.Max, people.requests.Max, people.denied.Max = maxRemembered, maxRemembered, maxRemembered
	if asJSON {
		return &jsonPrinter{textPrinter: people, enc: runnerscripts.NewEncoder(a.out)}
	}
	a.status.BeforeDrawing(people.showSaid)
	return people
}

// newTranscriptPrinter returns a printer that also shows the user's messages.
func (a *app) newTranscriptPrinter(asJSON bool) printer {
	p := a.newPrinter(asJSON)
	if people, ok := p.(*textPrinter); ok {
		people.user = true
	}
	return p
}

// jsonPrinter prints events as JSON lines. Its messages for the user go to standard error.
type jsonPrinter struct {
	*textPrinter
	enc *runnerscripts.Encoder
}

func (p *jsonPrinter) event(ev runnerscripts.Event) error { return p.enc.Encode(ev) }

func (p *jsonPrinter) finish() error { return nil }

// textPrinter prints text for a user: the agent's messages to standard output, everything
// about the run to standard error.
type textPrinter struct {
	requests boundedmap.Map[pending] // permission requests
	denied   boundedmap.Map[string]  // the flags that would have allowed a request, by the requests that no user is asked
	mu       sync.Mutex
	asked    *prompt               // the open question; nil if there is none
	held     []runnerscripts.Event // events since the question was shown
	heldSize int                   // bytes of their payloads
	out, err *term.Output
	output   *term.Output // gets the outputs of queries; nil for none
	user     bool         // show the user's messages, too
	block    string
	said     said
	doing    doing
	failure  string // an error not yet printed: the query's failure may say the same
	tools    boundedmap.Map[runnerscripts.ToolCall]
}

// maxRemembered bounds the bytes that a printer remembers of tool calls, of permission requests,
// and of events that are held back.
const maxRemembered = 16 << 20

func (p *textPrinter) event(ev runnerscripts.Event) error {
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

// show prints an event. The caller holds mu.
func (p *textPrinter) show(ev runnerscripts.Event) error {
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

// restored prints how an agent got the conversation of another agent.
func (p *textPrinter) restored(ev runnerscripts.Event) error {
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
	return p.err.Println(term.Dim(text))
}

// chunk prints a piece of a message as it comes.
func (p *textPrinter) chunk(ev runnerscripts.Event) error {
	c, err := runnerscripts.Payload[runnerscripts.ContentChunk](ev)
	if err != nil || c.Content.Text == "" {
		return nil
	}
	known := p.block == c.BlockID
	if c.Snapshot && known {
		return p.said.show() // its text was printed piece by piece
	}
	if !known {
		if err := p.endLine(); err != nil {
			return err
		}
		p.block = c.BlockID
	}
	return p.said.add(c.Content.Text, ev.Type == runnerscripts.TypeAgentThought)
}

// showSaid prints the text so far when the agent pauses.
func (p *textPrinter) showSaid() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked == nil {
		_ = p.said.show() // the next event reports the error
	}
}

// userMessage prints a message of the user, if p.user is set.
func (p *textPrinter) userMessage(ev runnerscripts.Event) error {
	c, err := runnerscripts.Payload[runnerscripts.ContentChunk](ev)
	if err != nil || !p.user {
		return nil
	}
	if c.Content.Type == "image" {
		return p.line(term.Bold("> [" + c.Content.MimeType + "]"))
	}
	return p.line(term.Bold("> " + c.Content.Text))
}

// tool prints a tool call when it starts, and its result when it ends. A result that comes later is
// printed with the call.
func (p *textPrinter) tool(ev runnerscripts.Event) error {
	u, err := runnerscripts.Payload[runnerscripts.ToolCall](ev)
	if err != nil {
		return nil
	}
	call, known := p.tools.Get(u.ToolCallID)
	late := hasEnded(call) && len(call.Content) == 0 && (len(u.Content) > 0 || u.ExitCode != 0)
	call.Update(runnerscripts.ToolCall{Title: u.Title, Status: u.Status, Content: u.Content}) // the rest is not printed later
	p.tools.Put(u.ToolCallID, call, sizeOf(call))
	if !known || late || u.Title != "" && ev.Type == runnerscripts.TypeToolCall {
		if err := p.line(term.Cyan("→ "), term.Bold(indented(firstOf(call.Title, u.Name)))); err != nil {
			return err
		}
	}
	switch {
	case !late && !hasEnded(u):
		return nil
	case call.Status == runnerscripts.ToolFailed:
		if err := p.result(call, term.Red); err != nil {
			return err
		}
		return p.failed(u, call)
	}
	return p.result(call, term.Dim)
}

// hasEnded reports whether a tool call has ended.
func hasEnded(call runnerscripts.ToolCall) bool {
	return call.Status == runnerscripts.ToolCompleted || call.Status == runnerscripts.ToolFailed
}

// failed prints how a command failed, and that a tool failed that says nothing itself.
func (p *textPrinter) failed(u, call runnerscripts.ToolCall) error {
	switch {
	case u.Signal != 0:
		return p.line(term.Red(fmt.Sprintf("  (killed by signal %d)", u.Signal)))
	case u.ExitCode != 0:
		return p.line(term.Red(fmt.Sprintf("  (exit %d)", u.ExitCode)))
	case !slices.ContainsFunc(call.Content, shows):
		return p.line(term.Red("  (failed)"))
	}
	return nil
}

// shows reports whether a part of a tool's output has a line.
func shows(c runnerscripts.ToolCallContent) bool {
	for range rows(c, term.Plain) {
		return true
	}
	return false
}

// sizeOf returns how many bytes of memory the printed parts of a tool call take.
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

// resultLines is how many lines of a tool's output are shown.
const resultLines = 12

func (p *textPrinter) result(call runnerscripts.ToolCall, paint func(string) term.Span) error {
	shown, more := 0, 0
	for _, c := range call.Content {
		for l := range rows(c, paint) {
			if shown == resultLines {
				more++
				continue
			}
			shown++
			if err := p.line(term.Plain("  "), l); err != nil {
				return err
			}
		}
	}
	if more > 0 {
		return p.line(term.Plain("  "), paint("... "+plural(more, "more line")))
	}
	return nil
}

// rows yields the lines of a tool's output. For a diff it yields the old lines, then the new
// ones.
func rows(c runnerscripts.ToolCallContent, paint func(string) term.Span) iter.Seq[term.Span] {
	return func(yield func(term.Span) bool) {
		all := func(text, mark string, paint func(string) term.Span) bool {
			for l := range strings.Lines(text) {
				if !yield(paint(mark + strings.TrimRight(l, "\r\n"))) {
					return false
				}
			}
			return true
		}
		switch {
		case c.Type == "diff":
			if c.OldText == nil || all(*c.OldText, "- ", term.Red) {
				all(c.NewText, "+ ", term.Green)
			}
		case c.Content != nil:
			all(c.Content.Text, "", paint)
		}
	}
}

func (p *textPrinter) plan(ev runnerscripts.Event) error {
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
		if err := p.line(term.Dim(mark + " " + indented(e.Content))); err != nil {
			return err
		}
	}
	return nil
}

// subagent prints what a subagent does, but not what it says.
func (p *textPrinter) subagent(ev runnerscripts.Event) error {
	if ev.Type != runnerscripts.TypeToolCall {
		return nil
	}
	u, err := runnerscripts.Payload[runnerscripts.ToolCall](ev)
	if err != nil {
		return nil
	}
	return p.line(term.Dim("  · " + indented(firstOf(u.Title, u.Name))))
}

func (p *textPrinter) end(ev runnerscripts.Event) error {
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
		return p.err.Println(term.Red("failed: " + f.Message))
	}
	c, err := runnerscripts.Payload[runnerscripts.QueryCompleted](ev)
	if err != nil {
		return nil
	}
	err = p.err.Println(term.Dim(summary(c)))
	if p.output != nil && len(c.ResultData) > 0 {
		err = errors.Join(err, p.output.Println(term.Plain(string(c.ResultData))))
	}
	return err
}

// summary returns one line about a finished query.
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

// maxShownLine is how many characters of an agent's line a warning shows.
const maxShownLine = 200

func (p *textPrinter) diagnostic(ev runnerscripts.Event) error {
	var d struct {
		Level, Message string
		Data           json.RawMessage
	}
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
	var about struct{ Line string } // of the agent's output
	if json.Unmarshal(d.Data, &about) == nil && about.Line != "" {
		d.Message += fmt.Sprintf(": %q", cut(about.Line, maxShownLine))
	}
	return p.err.Println(term.Dim(firstOf(d.Level, "error") + ": " + d.Message))
}

// printFailure prints the error that was held back, if there is one.
func (p *textPrinter) printFailure() {
	if p.failure != "" {
		_ = p.err.Println(term.Dim("error: " + p.failure))
		p.failure = ""
	}
}

func (p *textPrinter) finish() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = nil
	p.doing.nothing()
	err := p.release()
	p.printFailure()
	return errors.Join(err, p.endLine())
}

// line prints a separate line.
func (p *textPrinter) line(text ...term.Span) error {
	if err := p.endLine(); err != nil {
		return err
	}
	p.block = ""
	return p.out.Println(text...)
}

// endLine prints the agent's text so far and ends its last line.
func (p *textPrinter) endLine() error { return p.said.end() }

// indented indents all lines of a text but the first.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }

// plural returns a number with a noun, in the plural unless the number is 1.
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
