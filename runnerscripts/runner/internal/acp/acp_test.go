package acp

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/session"
)

// fixture is a session of the test's own agent.
type fixture struct {
	t       *testing.T
	driver  Driver
	session runnerscripts.Session
	profile runnerscripts.Profile
	out     *agenttest.Recorder
	raw     bool
}

// newFixture returns a session of an agent with the given features.
func newFixture(t *testing.T, offers string) *fixture {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, session: agenttest.NewSession(t, agent.NewUUID(), name), out: agenttest.NewRecorder()}
	f.session.Agent.Command = []string{self}
	f.session.Agent.Env = map[string]string{agentVariable: offers}
	return f
}

func (f *fixture) tryStart() (agent.Conversation, error) {
	req := runnerscripts.QueryRequest{Session: f.session, Profile: f.profile, Raw: f.raw}
	c, err := f.driver.Start(f.t.Context(), req, f.out)
	if err == nil {
		f.t.Cleanup(func() {
			if err := c.Close(); err != nil {
				f.t.Errorf("close: %v", err)
			}
		})
	}
	return c, err
}

func (f *fixture) start() agent.Conversation {
	f.t.Helper()
	c, err := f.tryStart()
	if err != nil {
		f.t.Fatalf("start: %v", err)
	}
	return c
}

func (f *fixture) prompt(c agent.Conversation, text string) runnerscripts.QueryCompleted {
	f.t.Helper()
	done, err := c.Prompt(f.t.Context(), "query", text)
	if err != nil {
		f.t.Fatalf("prompt %q: %v", text, err)
	}
	return done
}

// promptAsync runs a query in the background. The returned function waits for its end.
func (f *fixture) promptAsync(c agent.Conversation, text string) func() (runnerscripts.QueryCompleted, error) {
	type outcome struct {
		done runnerscripts.QueryCompleted
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		done, err := c.Prompt(f.t.Context(), "query", text)
		result <- outcome{done, err}
	}()
	return func() (runnerscripts.QueryCompleted, error) {
		o := <-result
		return o.done, o.err
	}
}

func (f *fixture) asked() runnerscripts.PermissionRequest {
	f.t.Helper()
	return agenttest.Payload[runnerscripts.PermissionRequest](f.t,
		f.out.Wait(f.t.Context(), f.t, agenttest.OfType(runnerscripts.TypePermissionRequest)))
}

func (f *fixture) said() string {
	f.t.Helper()
	return agenttest.Said(f.t, f.out.All())
}

// sameTranscript fails the test unless the transcript has the same conversation as the live events.
func (f *fixture) sameTranscript() runnerscripts.Transcript {
	f.t.Helper()
	out := agenttest.NewRecorder()
	tr, err := Driver{}.Transcript(f.t.Context(), runnerscripts.TranscriptRequest{Session: f.session, Events: true}, out)
	if err != nil {
		f.t.Fatalf("read the transcript: %v", err)
	}
	agenttest.SameConversation(f.t, f.out.All(), out.All())
	return tr
}

func TestUpdatesBecomeBlocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	done := f.prompt(f.start(), "blocks")
	if done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("stop reason %q", done.StopReason)
	}
	want := []struct {
		kind session.BlockKind
		text string
	}{
		{session.BlockUser, "blocks"},
		{session.BlockThought, "hmm"},
		{session.BlockAgent, "one text"},
		{session.BlockAgent, "another message"},
		{session.BlockTool, ""},
		{session.BlockAgent, "after the tool"},
	}
	blocks := agenttest.Fold(t, f.out.All()).Blocks
	if len(blocks) != len(want) {
		t.Fatalf("blocks: %s", agenttest.Show(t, blocks))
	}
	for i, w := range want {
		if blocks[i].Kind != w.kind || blocks[i].Text != w.text {
			t.Errorf("block %d: %s", i, agenttest.Show(t, blocks[i]))
		}
	}
	call := blocks[4].Tool
	if call.ToolCallID != "call-1" || call.Title != "look" || call.Kind != runnerscripts.ToolRead ||
		call.Status != runnerscripts.ToolCompleted || string(call.RawInput) != `{"path":"a"}` ||
		len(call.Content) != 1 || call.Content[0].OldText != nil || call.Content[0].NewText != "new" {
		t.Errorf("call: %s", agenttest.Show(t, call))
	}
	f.sameTranscript()
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 1 || init[0].AgentVersion != "1.2.3" || init[0].Agent != name {
		t.Errorf("session_initialized: %+v", init)
	}
}

func TestPlanIsPassedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.prompt(f.start(), "plan")
	plans := agenttest.Payloads[runnerscripts.Plan](t, f.out.All(), runnerscripts.TypePlan)
	if len(plans) != 1 || len(plans[0].Entries) != 2 || plans[0].Entries[1] !=
		(runnerscripts.PlanEntry{Content: "act", Priority: "low", Status: "pending"}) {
		t.Errorf("plans: %+v", plans)
	}
	f.sameTranscript()
}

func TestUsageIsThatOfTheQueryAloneAlsoAfterAResume(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume")
	c := f.start()
	f.prompt(c, "cost")
	// The agent reports session costs of 1.5, 2.5 and 3.5 dollars.
	want := runnerscripts.Usage{InputTokens: 100, OutputTokens: 20, CacheReadTokens: 7, CostUSD: 1}
	if got := f.prompt(c, "cost").Usage; got != want {
		t.Errorf("usage %+v", got)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := f.prompt(f.start(), "cost").Usage; got != want {
		t.Errorf("usage after the resume %+v", got)
	}
	updates := agenttest.Payloads[runnerscripts.UsageUpdate](t, f.out.All(), runnerscripts.TypeUsageUpdate)
	if len(updates) != 3 || updates[0] != (runnerscripts.UsageUpdate{Used: 120, Size: 1000}) {
		t.Errorf("usage updates: %+v", updates)
	}
}

func TestInterruptStopsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.start()
	wait := f.promptAsync(c, "hang")
	f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
	for range 2 { // the second call does nothing
		if err := c.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	f.prompt(c, "say something")
}

func TestInterruptRightAfterThePromptIsNotLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.start()
	wait := f.promptAsync(c, "hang")
	f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeUserMessage))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
}

func TestAPromptWaitsForTheInterruptOfTheLastOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "modes,resume")
	c := f.start()
	inner(c).stopping.Add(1) // pretend that an interrupt is being sent
	wait := f.promptAsync(c, "say something")
	f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeUserMessage))
	for range 20 { // the agent answers each call
		for _, mode := range []string{"code", "ask"} {
			if err := c.SetMode(t.Context(), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := f.said(); got != "" {
		t.Errorf("the agent has the prompt already: %q", got)
	}
	inner(c).stopping.Done()
	if _, err := wait(); err != nil || f.said() != "something\n" {
		t.Errorf("the agent said %q, %v", f.said(), err)
	}
}

func TestModeAndModelAreSetTheWayThatTheAgentOffers(t *testing.T) {
	t.Parallel()
	for _, offers := range []string{"modes,resume", "config,resume"} {
		t.Run(offers, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, offers)
			c := f.start()
			f.prompt(c, "options")
			if err := c.SetMode(t.Context(), "code"); err != nil {
				t.Fatal(err)
			}
			if err := c.SetModel(t.Context(), "large"); err != nil {
				t.Fatal(err)
			}
			f.prompt(c, "options")
			if got := f.said(); got != "ask small\ncode large\n" {
				t.Errorf("the options were %q", got)
			}
			modes := agenttest.Payloads[runnerscripts.ModeUpdate](t, f.out.All(), runnerscripts.TypeModeUpdate)
			if len(modes) != 1 || modes[0].CurrentModeID != "code" {
				t.Errorf("modes: %+v", modes)
			}
		})
	}
	for _, offers := range []string{"modes,starts-auto", "config,starts-auto"} {
		t.Run("none chosen, "+offers, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, offers)
			f.prompt(f.start(), "options")
			if got := f.said(); got != "ask small\n" {
				t.Errorf("the options were %q", got)
			}
			init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.out.All(), runnerscripts.TypeSessionInitialized)
			if len(init) != 1 || init[0].Mode != "ask" {
				t.Errorf("session_initialized: %+v", init)
			}
		})
	}
	t.Run("at the start", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "modes")
		f.session.Agent.PermissionMode, f.session.Agent.Model = "code", "large"
		f.prompt(f.start(), "options")
		if got := f.said(); got != "code large\n" {
			t.Errorf("the options were %q", got)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "modes")
		c := f.start()
		if err := c.SetMode(t.Context(), "none"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), "[ask code]") {
			t.Errorf("mode: %v", err)
		}
		if err := c.SetModel(t.Context(), "none"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			t.Errorf("model: %v", err)
		}
	})
	t.Run("none on offer", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "")
		c := f.start()
		if err := c.SetMode(t.Context(), "code"); !agenttest.HasCode(err, runnerscripts.FailUnsupported) {
			t.Errorf("mode: %v", err)
		}
		if err := c.SetModel(t.Context(), "large"); !agenttest.HasCode(err, runnerscripts.FailUnsupported) {
			t.Errorf("model: %v", err)
		}
	})
}

// inner returns the conversation that a recorded one wraps.
func inner(c agent.Conversation) *conversation { return c.(recorded).Conversation.(*conversation) }

func TestASilentProgramIsEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume")
	f.driver.silence = 20 * time.Second // a busy machine may take long to start
	c := f.start()
	wait := f.promptAsync(c, "hang")
	f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
	conv := inner(c)
	conv.mu.Lock()
	peer := conv.peer
	conv.mu.Unlock()
	peer.heard.Store(time.Now().Add(-2 * f.driver.silence).UnixNano())
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "20s") {
		t.Errorf("error %v", err)
	}
	conv.cfg.Silence = time.Minute // a busy machine may take longer to answer
	f.prompt(c, "remember")
	if got := f.said(); !strings.Contains(got, "hang\n") {
		t.Errorf("the agent said %q", got)
	}
}

func TestPermissionThatWaitsIsNoSilence(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.driver.silence = 20 * time.Second // a busy machine may take long to ask, and to continue
	c := f.start()
	wait := f.promptAsync(c, "ask")
	req := f.asked()
	conv := inner(c)
	conv.mu.Lock()
	peer := conv.peer
	conv.mu.Unlock()
	peer.heard.Store(time.Now().Add(-2 * f.driver.silence).UnixNano())
	// While the agent waits for an answer, the driver restarts the silence timer. Wait for that.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); peer.silence() > f.driver.silence; <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the silence of an agent that waits counts")
		}
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Error(err)
	}
}
