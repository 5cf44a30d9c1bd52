package acp

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

func TestUpdatesOfAStartComeAfterSessionInitialized(t *testing.T) {
	t.Parallel()
	// Before the reply to session/new, and between the replies to session/new and session/set_mode.
	for _, offers := range []string{"modes,offers-first", "modes,offers-with-mode"} {
		t.Run(offers, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, offers)
			f.Session.Agent.PermissionMode = "code"
			f.Start()
			var types []runnerscripts.EventType
			for _, e := range f.Out.All() {
				types = append(types, e.Type)
			}
			if !slices.Equal(types, []runnerscripts.EventType{runnerscripts.TypeSessionInitialized, runnerscripts.TypeCommands}) {
				t.Errorf("events: %q", types)
			}
		})
	}
}

// TestAFailedStartReportsWhatTheAgentSaid tests the first start and a restart.
func TestAFailedStartReportsWhatTheAgentSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "explains")
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailAgent) || f.Said() != "no disk\n" {
		t.Errorf("start: %v, the agent said %q", err, f.Said())
	}
	f = newFixture(t, "")
	c := f.Start()
	inner(c).peer.Kill()
	inner(c).cfg.Query.Agent.Env[agentVariable] = "explains"
	if _, err := c.Prompt(t.Context(), "q", "options"); !agenttest.HasCode(err, runnerscripts.FailAgent) || f.Said() != "no disk\n" {
		t.Errorf("restart: %v, the agent said %q", err, f.Said())
	}
	// The mode of a session that was not created is not the user's choice.
	if mode := inner(c).mode; mode != "" {
		t.Errorf("the mode is %q", mode)
	}
}

// TestTheAgentsOwnModeIsNotChosen has an agent that reports its mode, in which it does not ask,
// before the driver sets one.
func TestTheAgentsOwnModeIsNotChosen(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "modes,starts-auto,mode-first")
	c := f.Start()
	f.Prompt(c, "options")
	if got := f.Said(); got != "ask small\n" {
		t.Errorf("the options were %q", got)
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](t, f.Out.All(), runnerscripts.TypeModeUpdate)
	if len(init) != 1 || init[0].Mode != "ask" || len(modes) != 0 {
		t.Errorf("session_initialized: %+v, modes: %+v", init, modes)
	}

	again := newFixture(t, "modes,starts-auto,mode-first")
	c = again.Start()
	inner(c).peer.Kill()
	again.Prompt(c, "options") // in a new process
	if got := again.Said(); got != "ask small\n" {
		t.Errorf("after a restart the options were %q", got)
	}
}

// TestTooManyUpdatesOfAStartAreNotHeld has changes of the mode among them, which the driver may still
// drop.
func TestTooManyUpdatesOfAStartAreNotHeld(t *testing.T) {
	t.Parallel()
	n := 0
	s := updates{emit: func(Update) { n++ }}
	for range 3 {
		s.report(Update{Kind: string(runnerscripts.TypeModeUpdate)})
		s.report(Update{Raw: make([]byte, mostEarly/2)})
	}
	if n != 3 || len(s.early) != 1 {
		t.Errorf("%d updates were reported, %d are held", n, len(s.early))
	}
	s.dropModes()
	if s.release(); n != 3 || len(s.early) != 0 {
		t.Errorf("after the release %d updates were reported, %d are held", n, len(s.early))
	}
}

// TestAModeAfterTheReplyIsAChange has an agent that changes its mode right after the reply to
// session/set_mode.
func TestAModeAfterTheReplyIsAChange(t *testing.T) {
	t.Parallel()
	c := &conversation{cfg: Config{Out: agenttest.NewRecorder()}, mode: "ask"}
	c.updates.emit = c.said
	p, err := jsonrpc.Start(child.Command{Args: []string{"/bin/cat"}}, "2.0", func(p *jsonrpc.Peer, line []byte) {
		var m jsonrpc.Message
		if err := json.Unmarshal(line, &m); err != nil {
			t.Error(err)
		}
		c.notified("session/update", []byte(`{"update":{"sessionUpdate":"current_mode_update","currentModeId":"auto"}}`))
		p.Replied(jsonrpc.Message{ID: m.ID})
		c.notified("session/update", []byte(`{"update":{"sessionUpdate":"current_mode_update","currentModeId":"code"}}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	options := options{modes: &acpsdk.SessionModeState{AvailableModes: []acpsdk.SessionMode{{Id: "ask"}}}}
	if err := c.applyOptions(t.Context(), &peer{Peer: p, options: options}); err != nil {
		t.Fatal(err)
	}
	p.Close() // all lines are handled
	if c.updates.release(); c.mode != "code" {
		t.Errorf("the mode is %q", c.mode)
	}
}

func TestAStartWaitsForTheUpdatesThatFollowIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &conversation{progress: make(chan struct{}, 1)}
		start := func() <-chan error {
			started := make(chan error, 1)
			go func() { started <- c.await(t.Context(), nil, func() bool { return c.offered }) }()
			return started
		}
		first := start()
		synctest.Wait()
		if len(first) != 0 {
			t.Error("the start has not waited for the commands")
		}
		c.notified("session/update", []byte(`{"update":{"sessionUpdate":"available_commands_update","availableCommands":[]}}`))
		synctest.Wait()
		if len(first) != 1 {
			t.Error("the start still waits for the commands")
		}
		c.offered = false
		if err := <-start(); err != nil { // an agent that reports none
			t.Error(err)
		}
	})
}
