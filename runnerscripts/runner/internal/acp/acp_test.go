package acp

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/drivertest"
	"github.com/agentenv-dev/agentenv/session"
)

// fixture is a session of the test's own agent.
type fixture struct {
	*drivertest.Fixture
	driver *Driver
}

// newSession returns a session without an agent.
func newSession(t *testing.T) *fixture {
	t.Helper()
	d := new(Driver)
	return &fixture{drivertest.New(t, d, name), d}
}

// newFixture returns a session of an agent with the given features.
func newFixture(t *testing.T, offers string) *fixture {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := newSession(t)
	f.Session.Agent.Command = []string{self}
	f.Session.Agent.Env = map[string]string{agentVariable: offers}
	return f
}

func TestUpdatesBecomeBlocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	done := f.Prompt(f.Start(), "blocks")
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
	blocks := agenttest.Fold(t, f.Out.All()).Blocks
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
	f.SameAsTranscript()
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 1 || init[0].AgentVersion != "1.2.3" || init[0].Agent != name {
		t.Errorf("session_initialized: %+v", init)
	}
}

func TestPlanIsPassedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.Prompt(f.Start(), "plan")
	plans := agenttest.Payloads[runnerscripts.Plan](t, f.Out.All(), runnerscripts.TypePlan)
	if len(plans) != 1 || len(plans[0].Entries) != 2 || plans[0].Entries[1] !=
		(runnerscripts.PlanEntry{Content: "act", Priority: "low", Status: "pending"}) {
		t.Errorf("plans: %+v", plans)
	}
	f.SameAsTranscript()
}

func TestUsageIsThatOfTheQueryAloneAlsoAfterAResume(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume")
	c := f.Start()
	f.Prompt(c, "cost")
	// The agent reports session costs of 1.5, 2.5 and 3.5 dollars.
	want := runnerscripts.Usage{InputTokens: 100, OutputTokens: 20, CacheReadTokens: 7, CostUSD: 1}
	if got := f.Prompt(c, "cost").Usage; got != want {
		t.Errorf("usage %+v", got)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := f.Prompt(f.Start(), "cost").Usage; got != want {
		t.Errorf("usage after the resume %+v", got)
	}
	updates := agenttest.Payloads[runnerscripts.UsageUpdate](t, f.Out.All(), runnerscripts.TypeUsageUpdate)
	if len(updates) != 3 || updates[0] != (runnerscripts.UsageUpdate{Used: 120, Size: 1000}) {
		t.Errorf("usage updates: %+v", updates)
	}
}

func TestInterruptStopsTheQuery(t *testing.T) {
	t.Parallel()
	for _, scene := range []string{"hang", "finish"} {
		t.Run(scene, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "")
			c := f.Start()
			wait := f.PromptAsync(c, scene)
			f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
			for range 2 { // the second call does nothing
				if err := c.Interrupt(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
				t.Errorf("ended with %q, %v", done.StopReason, err)
			}
			f.Prompt(c, "say something")
		})
	}
}

func TestInterruptRightAfterThePromptIsNotLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	wait := f.PromptAsync(c, "hang")
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeUserMessage))
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
	c := f.Start()
	inner(c).stopping.Add(1) // pretend that an interrupt is being sent
	wait := f.PromptAsync(c, "say something")
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeUserMessage))
	for range 20 { // the agent answers each call
		for _, mode := range []string{"code", "ask"} {
			if err := c.SetMode(t.Context(), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := f.Said(); got != "" {
		t.Errorf("the agent has the prompt already: %q", got)
	}
	inner(c).stopping.Done()
	if _, err := wait(); err != nil || f.Said() != "something\n" {
		t.Errorf("the agent said %q, %v", f.Said(), err)
	}
}

func TestModeAndModelAreSetTheWayThatTheAgentOffers(t *testing.T) {
	t.Parallel()
	for _, offers := range []string{"modes,resume", "config,resume"} {
		t.Run(offers, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, offers)
			c := f.Start()
			f.Prompt(c, "options")
			if err := c.SetMode(t.Context(), "code"); err != nil {
				t.Fatal(err)
			}
			if err := c.SetModel(t.Context(), "large"); err != nil {
				t.Fatal(err)
			}
			f.Prompt(c, "options")
			if got := f.Said(); got != "ask small\ncode large\n" {
				t.Errorf("the options were %q", got)
			}
			modes := agenttest.Payloads[runnerscripts.ModeUpdate](t, f.Out.All(), runnerscripts.TypeModeUpdate)
			if len(modes) != 1 || modes[0].CurrentModeID != "code" {
				t.Errorf("modes: %+v", modes)
			}
		})
	}
	for _, offers := range []string{"modes,starts-auto", "config,starts-auto"} {
		t.Run("none chosen, "+offers, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, offers)
			f.Prompt(f.Start(), "options")
			if got := f.Said(); got != "ask small\n" {
				t.Errorf("the options were %q", got)
			}
			init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
			if len(init) != 1 || init[0].Mode != "ask" {
				t.Errorf("session_initialized: %+v", init)
			}
		})
	}
	t.Run("at the start", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "modes")
		f.Session.Agent.PermissionMode, f.Session.Agent.Model = "code", "large"
		f.Prompt(f.Start(), "options")
		if got := f.Said(); got != "code large\n" {
			t.Errorf("the options were %q", got)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "modes")
		c := f.Start()
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
		c := f.Start()
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
	c := f.Start()
	wait := f.PromptAsync(c, "hang")
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
	conv := inner(c)
	conv.mu.Lock()
	peer := conv.peer
	conv.mu.Unlock()
	peer.heard.Store(time.Now().Add(-2 * f.driver.silence).UnixNano())
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "20s") {
		t.Errorf("error %v", err)
	}
	conv.cfg.Silence = time.Minute // a busy machine may take longer to answer
	f.Prompt(c, "remember")
	if got := f.Said(); !strings.Contains(got, "hang\n") {
		t.Errorf("the agent said %q", got)
	}
}

func TestPermissionThatWaitsIsNoSilence(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.driver.silence = 20 * time.Second // a busy machine may take long to ask, and to continue
	c := f.Start()
	wait := f.PromptAsync(c, "ask")
	req := f.Asked()
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

// TestAnAttachmentThatAnAgentHasNotAnnouncedIsRefusedByName uses an agent that announces nothing: a
// text is part of the prompt then.
func TestAnAttachmentThatAnAgentHasNotAnnouncedIsRefusedByName(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	for kind, data := range map[string]string{"image/png": "\x89PNG\r\n\x1a\n", "application/pdf": "%PDF-1.7\n"} {
		_, err := c.Prompt(t.Context(), "query", "say it", runnerscripts.Attachment{Name: "a", MediaType: kind, Data: []byte(data)})
		if !agenttest.HasCode(err, runnerscripts.FailUnsupported) || !strings.Contains(err.Error(), "a ("+kind+")") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	text := runnerscripts.Attachment{Name: "a.txt", MediaType: "text/plain", Data: []byte("words")}
	if _, err := c.Prompt(t.Context(), "query", "blocks-of-prompt", text); err != nil {
		t.Fatal(err)
	}
	if got := f.Said(); !strings.Contains(got, `\u003cfile name=\"a.txt\"\u003e\nwords\n`) {
		t.Errorf("the agent got %s", got)
	}
}
