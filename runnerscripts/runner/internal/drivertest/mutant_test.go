package drivertest

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// broken is a correct driver with faults. A nil field adds no fault.
type broken struct {
	agent.Driver
	recipe     func(runnerscripts.Recipe) runnerscripts.Recipe
	setup      func(req *runnerscripts.SetupRequest) error          // runs before Setup
	profile    func(*runnerscripts.Session, *runnerscripts.Profile) // changes Setup and Start
	started    func(req *runnerscripts.QueryRequest)                // changes the request of Start
	detach     bool                                                 // Start ignores its context
	err        func(error) error                                    // of Setup and Start
	transcript func(runnerscripts.Transcript) runnerscripts.Transcript
	sink       func(typ runnerscripts.EventType, payload any) (any, bool) // false drops the event
	talk       func(brokenConversation) brokenConversation

	oneConversation bool // all events are of the main conversation
	askInMain       bool // permission requests are of the main conversation

	rig *rig // of the mutant's run
}

func (b broken) Recipe() runnerscripts.Recipe {
	if b.recipe != nil {
		return b.recipe(b.Driver.Recipe())
	}
	return b.Driver.Recipe()
}

func (b broken) fail(err error) error {
	if err != nil && b.err != nil {
		return b.err(err)
	}
	return err
}

func (b broken) Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if b.setup != nil {
		if err := b.setup(&req); err != nil {
			return runnerscripts.SetupData{}, err
		}
	}
	if b.profile != nil {
		b.profile(&req.Session, &req.Profile)
	}
	data, err := b.Driver.Setup(ctx, req)
	return data, b.fail(err)
}

func (b broken) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if b.started != nil {
		b.started(&req)
	}
	if b.profile != nil {
		b.profile(&req.Session, &req.Profile)
	}
	if b.detach {
		context.AfterFunc(ctx, func() { _ = b.rig.API.Release(b.rig.whole.Context()) }) // the query goes on
		ctx = context.WithoutCancel(ctx)
	}
	if b.sink != nil {
		out = brokenSink{out, b.sink}
	}
	if b.oneConversation || b.askInMain {
		out = mainSink{out, b.askInMain}
	}
	c, err := b.Driver.Start(ctx, req, out)
	if err != nil || b.talk == nil {
		return c, b.fail(err)
	}
	again := func() (agent.Conversation, error) { return b.Driver.Start(ctx, req, out) }
	return b.talk(brokenConversation{Conversation: c, again: again, rig: b.rig}), nil
}

func (b broken) Transcript(ctx context.Context, req runnerscripts.TranscriptRequest, out agent.Sink) (runnerscripts.Transcript, error) {
	t, err := b.Driver.Transcript(ctx, req, out)
	if b.transcript != nil {
		t = b.transcript(t)
	}
	return t, err
}

type brokenSink struct {
	agent.Sink
	change func(runnerscripts.EventType, any) (any, bool)
}

func (s brokenSink) Emit(conv string, typ runnerscripts.EventType, payload any) {
	s.EmitAt(time.Now(), conv, typ, payload)
}

func (s brokenSink) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	if payload, keep := s.change(typ, payload); keep {
		s.Sink.EmitAt(at, conv, typ, payload)
	}
}

// mainSink puts all events, or only the permission requests, into the main conversation.
type mainSink struct {
	agent.Sink
	requests bool
}

func (s mainSink) Emit(conv string, typ runnerscripts.EventType, payload any) {
	s.EmitAt(time.Now(), conv, typ, payload)
}

func (s mainSink) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	if !s.requests || typ == runnerscripts.TypePermissionRequest {
		conv = runnerscripts.MainConversation
	}
	s.Sink.EmitAt(at, conv, typ, payload)
}

type brokenConversation struct {
	agent.Conversation
	again     func() (agent.Conversation, error) // starts another conversation of the session
	rig       *rig
	prompt    func(context.Context, string) (runnerscripts.QueryCompleted, error)
	interrupt func(context.Context) error
	respond   func(context.Context, string, runnerscripts.PermissionDecision) error
	setMode   func(context.Context, string) error
	setModel  func(context.Context, string) error
	noFiles   bool // attachments are lost
	close     func() error
}

func (c brokenConversation) Prompt(ctx context.Context, id, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	if c.noFiles {
		attachments = nil
	}
	if c.prompt != nil {
		return c.prompt(ctx, text)
	}
	return c.Conversation.Prompt(ctx, id, text, attachments...)
}

func (c brokenConversation) Interrupt(ctx context.Context) error {
	if c.interrupt != nil {
		return c.interrupt(ctx)
	}
	return c.Conversation.Interrupt(ctx)
}

func (c brokenConversation) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	if c.respond != nil {
		return c.respond(ctx, id, d)
	}
	return c.Conversation.Respond(ctx, id, d)
}

func (c brokenConversation) SetMode(ctx context.Context, mode string) error {
	if c.setMode != nil {
		return c.setMode(ctx, mode)
	}
	return c.Conversation.SetMode(ctx, mode)
}

func (c brokenConversation) SetModel(ctx context.Context, model string) error {
	if c.setModel != nil {
		return c.setModel(ctx, model)
	}
	return c.Conversation.SetModel(ctx, model)
}

func (c brokenConversation) Close() error {
	if c.close != nil {
		return c.close()
	}
	return c.Conversation.Close()
}

// mutant is a driver with one fault, and the rule that must detect it. The rule must say why, as its
// first failure: a query that ends, or a message that comes, too early shows what is missing. A time
// limit shows nothing on a slow machine, so it is as long as in the other tests.
type mutant struct {
	name, rule string
	says       string // a part of that failure
	broken     broken
	subject    func() subject // nil: codexSubject
}

// lostInterrupt is a fault that ignores interrupts. The model goes on with its answer.
func lostInterrupt(c brokenConversation) brokenConversation {
	c.interrupt = func(ctx context.Context) error { return c.rig.API.Release(ctx) }
	return c
}

func withdrawalUntold(typ runnerscripts.EventType, payload any) (any, bool) {
	p, ok := payload.(runnerscripts.PermissionResolved)
	return payload, typ != runnerscripts.TypePermissionResolved || !ok || p.Reason != "cancelled"
}

func mutants() []mutant {
	return slices.Concat([]mutant{
		{name: "the recipe installs another version", rule: "the recipe installs what the tests run", says: "the recipe installs", broken: broken{recipe: func(r runnerscripts.Recipe) runnerscripts.Recipe {
			r.Version = "0.0.1"
			return r
		}}},
		{name: "the setup starts the program", rule: "a program in an npm package is not started for its version", says: "the program was started", broken: broken{setup: func(req *runnerscripts.SetupRequest) error {
			return exec.Command(req.Agent.Command[0], "--version").Run()
		}}},
		{name: "a missing program is an internal error", rule: "a missing program says how to install it", says: "start: start:", broken: broken{err: func(err error) error {
			return fmt.Errorf("start: %s", err.Error())
		}}},
		{name: "an empty transcript has a line", rule: "no transcript yet is an empty one", says: "{Agent: Main:\n", broken: broken{transcript: func(t runnerscripts.Transcript) runnerscripts.Transcript {
			t.Main += "\n"
			return t
		}}},
		{name: "white space of pieces is cut off", rule: "text arrives in pieces with all its white space", says: "pieces:", broken: broken{sink: func(_ runnerscripts.EventType, payload any) (any, bool) {
			if p, ok := payload.(runnerscripts.ContentChunk); ok {
				p.Content.Text = strings.TrimSpace(p.Content.Text)
				payload = p
			}
			return payload, true
		}}},
		{name: "each prompt starts the program", rule: "two prompts share a process", says: "the program was started 3 times", broken: broken{talk: func(c brokenConversation) brokenConversation {
			current := c.Conversation
			c.close = func() error { return current.Close() }
			c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
				done, err := current.Prompt(ctx, "q", text)
				if err == nil && current.Close() == nil {
					current, err = c.again()
				}
				return done, err
			}
			return c
		}}},
		{name: "a second answer is taken", rule: "a decision counts once", says: "a second answer: <nil>", broken: broken{talk: func(c brokenConversation) brokenConversation {
			c.respond = func(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
				_ = c.Conversation.Respond(ctx, id, d)
				return nil
			}
			return c
		}}},
		{name: "the end of a request of a program that crashed is not told", rule: "a crash withdraws the permission request and the next prompt goes on", says: "resolved: []", broken: broken{sink: withdrawalUntold}},
		{name: "a crash is an ordinary failure", rule: "a crash withdraws the permission request and the next prompt goes on", says: "the crash is not reported as agent: ", broken: broken{talk: func(c brokenConversation) brokenConversation {
			c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
				done, err := c.Conversation.Prompt(ctx, "q", text)
				if err != nil {
					err = agent.FailedQuery("%v", err)
				}
				return done, err
			}
			return c
		}}},
		{name: "the end of an interrupted request is not told", rule: "an interrupt withdraws the permission request of a command", says: "resolved: []", broken: broken{sink: withdrawalUntold}},
		{name: "an interrupt ends the query as if it were done", rule: "an interrupt withdraws the permission request of a file", says: `ended with "end_turn"`, broken: broken{talk: func(c brokenConversation) brokenConversation {
			c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
				done, err := c.Conversation.Prompt(ctx, "q", text)
				done.StopReason = runnerscripts.StopEndTurn
				return done, err
			}
			return c
		}}},
		{name: "a request for a file does not show it", rule: "an interrupt withdraws the permission request of a file", says: "the request does not show", broken: broken{sink: func(_ runnerscripts.EventType, payload any) (any, bool) {
			if p, ok := payload.(runnerscripts.PermissionRequest); ok {
				p.ToolCall.Locations, p.ToolCall.Content = nil, nil
				payload = p
			}
			return payload, true
		}}},
		{name: "an interrupt is lost", rule: "an interrupt right after the prompt is not lost", says: `ended with "end_turn"`, broken: broken{talk: lostInterrupt}},
		{name: "the end of the prompt's context is ignored", rule: "the end of the prompt's context ends the query and the next prompt goes on", says: `ended with "end_turn"`, broken: broken{talk: func(c brokenConversation) brokenConversation {
			c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
				context.AfterFunc(ctx, func() { _ = c.rig.API.Release(c.rig.whole.Context()) }) // the query goes on
				return c.Conversation.Prompt(context.WithoutCancel(ctx), "q", text)
			}
			return c
		}}},
		{name: "close leaves the program", rule: "closing ends a running query and the program", says: `the closed query ended with "end_turn"`, broken: broken{talk: func(c brokenConversation) brokenConversation {
			n := 0
			c.close = func() error { // the case calls Close twice, and the cleanup once
				switch n++; n {
				case 1:
					return c.rig.API.Release(c.rig.Context()) // the query goes on
				case 2:
					return nil
				}
				return c.Conversation.Close()
			}
			return c
		}}},
		{name: "the context does not reach the program", rule: "the end of the context ends the program", says: "the query goes on", broken: broken{detach: true}},
		{name: "each start is a new conversation", rule: "a new process remembers the conversation", says: "the model was sent", broken: broken{started: func(req *runnerscripts.QueryRequest) {
			req.SessionID = agent.NewUUID()
			req.Paths.Home += "/" + req.SessionID
		}}},
		{name: "retries are not reported", rule: "an API that cannot be reached is reported while the agent tries again", says: "the query ended before a warning", broken: broken{sink: without(runnerscripts.TypeLog)}},
		{name: "usage is that of the session", rule: "the tokens of a query are its own", says: "plain-text: error <nil>, usage", broken: broken{talk: completed(func(d *runnerscripts.QueryCompleted) {
			d.Usage.InputTokens++
		})}},
		{name: "the cost is forgotten", rule: "a query reports its cost", says: "CostUSD:0}", subject: claudeSubject, broken: broken{talk: completed(func(d *runnerscripts.QueryCompleted) {
			d.Usage.CostUSD = 0
		})}},
		{name: "thoughts are kept back", rule: "thoughts are reported", says: "2 blocks: [", broken: broken{sink: without(runnerscripts.TypeAgentThought)}},
		{name: "every decision allows", rule: "a rejected tool does not run", says: "the command ran: true", broken: broken{talk: decided(runnerscripts.AllowOnce)}},
		{name: "always is once", rule: "what is allowed for the session is not asked again", says: "asked again: true", broken: broken{talk: decided(runnerscripts.AllowOnce)}},
		{name: "the mode does not change", rule: "the mode changes between prompts", says: "asked: true", broken: broken{talk: func(c brokenConversation) brokenConversation {
			c.setMode = func(context.Context, string) error { return nil }
			return c
		}}},
		{name: "the model does not change", rule: "the model changes between prompts", says: "the model was ", broken: broken{talk: func(c brokenConversation) brokenConversation {
			c.setModel = func(context.Context, string) error { return nil }
			return c
		}}},
		{name: "a transcript is not restored", rule: "a restored session remembers the conversation", says: "and 0 after the restore", broken: broken{transcript: func(runnerscripts.Transcript) runnerscripts.Transcript {
			return runnerscripts.Transcript{}
		}}},
		{name: "a transcript is ignored", rule: "a restored session remembers the conversation", says: "the model was sent", subject: importingCodex, broken: broken{setup: func(req *runnerscripts.SetupRequest) error {
			req.Transcript = nil
			return nil
		}}},
		{name: "turns are not limited", rule: "a limit of turns ends the query", says: "after 21 requests", subject: claudeSubject, broken: broken{profile: func(s *runnerscripts.Session, _ *runnerscripts.Profile) {
			s.Agent.MaxTurns = 0
		}}},
		{name: "there is no budget", rule: "a budget ends the query", says: "after 21 requests", subject: claudeSubject, broken: broken{profile: func(_ *runnerscripts.Session, p *runnerscripts.Profile) {
			p.BudgetUSD = 0
		}}},
	}, attachmentMutants(), toolMutants(), profileMutants())
}

// completed returns a fault that changes the result of queries.
func completed(change func(*runnerscripts.QueryCompleted)) func(brokenConversation) brokenConversation {
	return func(c brokenConversation) brokenConversation {
		c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
			done, err := c.Conversation.Prompt(ctx, "q", text)
			change(&done)
			return done, err
		}
		return c
	}
}

// failed returns a fault that changes the errors of queries.
func failed(change func(error) error) func(brokenConversation) brokenConversation {
	return func(c brokenConversation) brokenConversation {
		c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
			done, err := c.Conversation.Prompt(ctx, "q", text)
			return done, change(err)
		}
		return c
	}
}

// decided returns a fault that replaces every decision with the given one.
func decided(kind runnerscripts.PermissionKind) func(brokenConversation) brokenConversation {
	return changedDecision(func(d *runnerscripts.PermissionDecision) { *d = runnerscripts.PermissionDecision{Kind: kind} })
}

// changedDecision returns a fault that changes every decision.
func changedDecision(change func(*runnerscripts.PermissionDecision)) func(brokenConversation) brokenConversation {
	return func(c brokenConversation) brokenConversation {
		c.respond = func(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
			change(&d)
			return c.Conversation.Respond(ctx, id, d)
		}
		return c
	}
}

// changedCall returns a fault that changes the tool calls.
func changedCall(change func(*runnerscripts.ToolCall)) func(runnerscripts.EventType, any) (any, bool) {
	return func(_ runnerscripts.EventType, payload any) (any, bool) {
		if call, ok := payload.(runnerscripts.ToolCall); ok {
			change(&call)
			payload = call
		}
		return payload, true
	}
}

// without returns a fault that drops the events of a type.
func without(dropped runnerscripts.EventType) func(runnerscripts.EventType, any) (any, bool) {
	return func(typ runnerscripts.EventType, payload any) (any, bool) { return payload, typ != dropped }
}

// TestMutants shows that the suite can fail: each driver with one fault breaks the rule that the
// mutant names. TestDrivers shows that the driver without the fault keeps the rule.
func TestMutants(t *testing.T) {
	byName := map[string]rule{}
	for _, r := range rules() {
		if _, twice := byName[r.name]; twice {
			t.Errorf("two rules %q", r.name)
		}
		byName[r.name] = r
		if !slices.ContainsFunc(mutants(), func(m mutant) bool { return m.rule == r.name }) {
			t.Errorf("no mutant breaks %q", r.name)
		}
	}
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			r, ok := byName[m.rule]
			if !ok {
				t.Fatalf("no rule %q", m.rule)
			}
			s := codexSubject()
			if m.subject != nil {
				s = m.subject()
			}
			b := m.broken
			b.Driver, s.driver = s.driver, &b
			log := attempt(t, func(t testing.TB) {
				b.rig = newRig(t, s)
				r.check(b.rig)
			})
			if len(log) == 0 {
				t.Fatalf("%q passes", m.rule)
			}
			if m.says == "" || !strings.Contains(log[0], m.says) {
				t.Errorf("%q says %.300q, want %q", m.rule, log[0], m.says)
			}
		})
	}
}

// attempt runs a check that may fail, and returns its failures.
func attempt(t *testing.T, check func(testing.TB)) []string {
	t.Helper()
	rec := &recorder{TB: t}
	rec.do(func() { check(rec) })
	for len(rec.cleanups) > 0 {
		last := rec.cleanups[len(rec.cleanups)-1]
		rec.cleanups = rec.cleanups[:len(rec.cleanups)-1]
		rec.do(last)
	}
	return rec.log
}

// recorder is a testing.TB that records failures, so that a check may fail.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	log      []string
	cleanups []func()
}

// do runs f on its own goroutine, like the testing package, so that Fatalf ends only f.
func (r *recorder) do(f func()) {
	var g sync.WaitGroup
	g.Go(f)
	g.Wait()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }
