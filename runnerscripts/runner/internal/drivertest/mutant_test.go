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

// broken is a good driver with faults: what is nil is done well.
type broken struct {
	agent.Driver
	recipe     func(runnerscripts.Recipe) runnerscripts.Recipe
	setup      func(req runnerscripts.SetupRequest) error // before it
	started    func(req *runnerscripts.QueryRequest)      // before Start
	detach     bool                                       // Start forgets its context
	err        func(error) error                          // of Start and Setup
	transcript func(runnerscripts.Transcript) runnerscripts.Transcript
	sink       func(typ runnerscripts.EventType, payload any) (any, bool) // false drops the event
	talk       func(brokenConversation) brokenConversation
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
		if err := b.setup(req); err != nil {
			return runnerscripts.SetupData{}, err
		}
	}
	data, err := b.Driver.Setup(ctx, req)
	return data, b.fail(err)
}

func (b broken) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if b.started != nil {
		b.started(&req)
	}
	if b.detach {
		ctx = context.WithoutCancel(ctx)
	}
	if b.sink != nil {
		out = brokenSink{out, b.sink}
	}
	c, err := b.Driver.Start(ctx, req, out)
	if err != nil || b.talk == nil {
		return c, b.fail(err)
	}
	again := func() (agent.Conversation, error) { return b.Driver.Start(ctx, req, out) }
	return b.talk(brokenConversation{Conversation: c, again: again}), nil
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

type brokenConversation struct {
	agent.Conversation
	again     func() (agent.Conversation, error) // starts another one of the session
	prompt    func(context.Context, string) (runnerscripts.QueryCompleted, error)
	interrupt func(context.Context) error
	respond   func(context.Context, string, runnerscripts.PermissionDecision) error
	close     func() error
}

func (c brokenConversation) Prompt(ctx context.Context, id, text string) (runnerscripts.QueryCompleted, error) {
	if c.prompt != nil {
		return c.prompt(ctx, text)
	}
	return c.Conversation.Prompt(ctx, id, text)
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

func (c brokenConversation) Close() error {
	if c.close != nil {
		return c.close()
	}
	return c.Conversation.Close()
}

// mutant is a driver with one fault, and the rule that must find it.
type mutant struct {
	name, rule string
	broken     broken
}

func withdrawalUntold(typ runnerscripts.EventType, payload any) (any, bool) {
	p, ok := payload.(runnerscripts.PermissionResolved)
	return payload, typ != runnerscripts.TypePermissionResolved || !ok || p.Reason != "cancelled"
}

func mutants() []mutant {
	return []mutant{
		{"the recipe installs another version", "the recipe installs what the tests run", broken{recipe: func(r runnerscripts.Recipe) runnerscripts.Recipe {
			r.Version = "0.0.1"
			return r
		}}},
		{"the setup starts the program", "a program in an npm package is not started for its version", broken{setup: func(req runnerscripts.SetupRequest) error {
			return exec.Command(req.Agent.Command[0], "--version").Run()
		}}},
		{"a missing program is an internal error", "a missing program says how to install it", broken{err: func(err error) error {
			return fmt.Errorf("start: %s", err.Error())
		}}},
		{"an empty transcript has a line", "no transcript yet is an empty one", broken{transcript: func(t runnerscripts.Transcript) runnerscripts.Transcript {
			t.Main += "\n"
			return t
		}}},
		{"white space of pieces is cut off", "text arrives in pieces with all its white space", broken{sink: func(_ runnerscripts.EventType, payload any) (any, bool) {
			if p, ok := payload.(runnerscripts.ContentChunk); ok {
				p.Content.Text = strings.TrimSpace(p.Content.Text)
				payload = p
			}
			return payload, true
		}}},
		{"each prompt starts the program", "two prompts share a process", broken{talk: func(c brokenConversation) brokenConversation {
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
		{"the system prompt is forgotten", "a system prompt reaches the model or is refused", broken{started: func(req *runnerscripts.QueryRequest) {
			req.Agent.SystemPrompt = ""
		}}},
		{"a second answer is taken", "a decision counts once", broken{talk: func(c brokenConversation) brokenConversation {
			c.respond = func(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
				_ = c.Conversation.Respond(ctx, id, d)
				return nil
			}
			return c
		}}},
		{"the end of a request of a program that crashed is not told", "a crash withdraws the permission request and the next prompt goes on", broken{sink: withdrawalUntold}},
		{"a crash is an ordinary failure", "a crash withdraws the permission request and the next prompt goes on", broken{talk: func(c brokenConversation) brokenConversation {
			c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
				done, err := c.Conversation.Prompt(ctx, "q", text)
				if err != nil {
					err = agent.FailedQuery("%v", err)
				}
				return done, err
			}
			return c
		}}},
		{"the end of an interrupted request is not told", "an interrupt withdraws the permission request of a command", broken{sink: withdrawalUntold}},
		{"an interrupt ends the query as if it were done", "an interrupt withdraws the permission request of a file", broken{talk: func(c brokenConversation) brokenConversation {
			c.prompt = func(ctx context.Context, text string) (runnerscripts.QueryCompleted, error) {
				done, err := c.Conversation.Prompt(ctx, "q", text)
				done.StopReason = runnerscripts.StopEndTurn
				return done, err
			}
			return c
		}}},
		{"an interrupt is lost", "an interrupt right after the prompt is not lost", broken{talk: func(c brokenConversation) brokenConversation {
			c.interrupt = func(context.Context) error { return nil }
			return c
		}}},
		{"close leaves the program", "closing ends a running query and the program", broken{talk: func(c brokenConversation) brokenConversation {
			n := 0
			c.close = func() error { // the case closes twice, and then its cleanup
				if n++; n < 3 {
					return nil
				}
				return c.Conversation.Close()
			}
			return c
		}}},
		{"the context does not reach the program", "the end of the context ends the program", broken{detach: true}},
		{"each start is a new conversation", "a new process remembers the conversation", broken{started: func(req *runnerscripts.QueryRequest) {
			req.SessionID = agent.NewUUID()
			req.Paths.Home += "/" + req.SessionID
		}}},
		{"retries are not reported", "an API that cannot be reached is reported while the agent tries again", broken{sink: func(typ runnerscripts.EventType, payload any) (any, bool) {
			return payload, typ != runnerscripts.TypeLog
		}}},
	}
}

// TestMutants shows that the suite can fail: each driver with one fault breaks the rule that
// is named for it. TestDrivers shows that the driver without the fault keeps it.
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
			m.broken.Driver = s.driver
			s.driver = m.broken
			log := attempt(t, func(t testing.TB) { r.check(newRig(t, s, 3*time.Second)) })
			if len(log) == 0 {
				t.Fatalf("%q passes", m.rule)
			}
			t.Logf("%q says: %.200s", m.rule, log[0])
		})
	}
}

// attempt runs a case that may fail, and returns what it says of it.
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

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	log      []string
	cleanups []func()
}

// do runs f like the testing package does, so that Fatalf ends only it.
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
