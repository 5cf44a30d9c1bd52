package opencode

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestProgramThatDoesNotStartFailsTheStart(t *testing.T) {
	t.Parallel()
	for behaviour, want := range map[string]string{"exits": "no such thing", "is silent": "50ms"} {
		t.Run(behaviour, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, behaviour)
			if behaviour == "is silent" {
				f.driver.patience = 50 * time.Millisecond
			}
			_, err := f.tryStart()
			if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.command") ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestServerThatFailsFailsTheQuery(t *testing.T) {
	t.Parallel()
	for behaviour, want := range map[string]string{
		"refuses":                     "BadRequest",
		"ends well without an answer": "OpenCode crashed: it ended",
		"crashes":                     "the real reason",
		"says nothing more":           "it said nothing for 50ms",
		"fails":                       "nothing works",
	} {
		code := runnerscripts.FailAgent
		if behaviour == "refuses" || behaviour == "fails" { // the server keeps running
			code = runnerscripts.FailQuery
		}
		t.Run(behaviour, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, behaviour)
			c, err := f.tryStart()
			if err != nil {
				t.Fatal(err)
			}
			if behaviour == "says nothing more" { // not before the start, which takes long on a busy machine
				c.server.silence.Store(int64(50 * time.Millisecond))
			}
			_, err = c.Prompt(t.Context(), "q", "hello")
			if !agenttest.HasCode(err, code) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v", err)
			}
			if n := len(err.Error()); n > 20<<10 {
				t.Errorf("the error has %d bytes", n)
			}
		})
	}
}

func TestGarbageAndFloodsDoNotHoldUpTheQuery(t *testing.T) {
	t.Parallel()
	f := newFake(t, "floods")
	c, err := f.tryStart()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prompt(t.Context(), "q", "hello"); err == nil || !strings.Contains(err.Error(), "nothing works") {
		t.Errorf("error %v", err)
	}
	if logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog); len(logs) != 2 {
		t.Errorf("logs: %+v", logs)
	}
}

// The program writes its log once a second, so the problems of its start may be in the log only
// after the first query.
func TestWhatIsLoggedLateOfTheStartIsTold(t *testing.T) {
	t.Parallel()
	f := newFake(t, "logs late")
	c, err := f.tryStart()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Prompt(t.Context(), "q", "hello"); err == nil || !strings.Contains(err.Error(), "nothing works") {
			t.Errorf("error %v", err)
		}
	}
	var told []string
	for _, l := range agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog) {
		if l.Level == "error" && !strings.Contains(l.Message, "nothing works") {
			told = append(told, l.Message)
		}
	}
	if want := []string{`"failed to load plugin" path=x error="no better"`}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func TestInterruptDoesNotWaitForAProgramThatHangs(t *testing.T) {
	t.Parallel()
	f := newFake(t, "works without an end")
	c, err := f.tryStart()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Prompt(ctx, "q", "hello")
		ended <- err
	}()
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeLog)) // an interrupt reaches the query now
	if err := syscall.Kill(c.server.proc.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := c.Interrupt(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestAPromptWaitsForTheInterruptOfTheLastOne(t *testing.T) {
	t.Parallel()
	f := newFake(t, "aborts slowly")
	c, err := f.tryStart()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f := f.in(t)
		wait := f.PromptAsync(c, "hello")
		f.wait(agenttest.OfType(runnerscripts.TypeLog)) // an interrupt reaches the query now
		if err := c.Interrupt(t.Context()); err != nil {
			t.Error(err)
		}
		if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
			t.Errorf("it ended with %q, %v", done.StopReason, err)
		}
	}
}

func TestModelThatIsNotThereFailsTheStart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*fixture)
		want  string
	}{
		"an unknown model":       {func(f *fixture) { f.Session.Agent.Model = "p/none" }, "(p/m)"},
		"an unknown mode":        {func(f *fixture) { f.Session.Agent.PermissionMode = "no-such-mode" }, "acceptEdits, auto, build"},
		"an unknown tool":        {func(f *fixture) { f.Profile.DeniedTools = []string{"bash", "Write"} }, `profile.denied_tools[1]`},
		"a model of a subagent":  {func(f *fixture) { f.Profile.Subagents = []runnerscripts.Subagent{{Name: "s", Model: "p/none"}} }, "profile.subagents[0].model"},
		"an agent of a command":  {func(f *fixture) { f.Profile.Commands = commandWith("agent", "nobody") }, `profile.commands[0].frontmatter.agent: OpenCode has no agent named "nobody"`},
		"a model of a command":   {func(f *fixture) { f.Profile.Commands = commandWith("model", "p/none") }, "profile.commands[0].frontmatter.model"},
		"a tool of no server":    {func(f *fixture) { f.Profile.AllowedTools = []string{"calc_add"} }, "calc_add"},
		"tools without a server": {func(f *fixture) { f.Profile.AllowedTools = []string{"calc_*"} }, "calc_*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, "any")
			tt.spoil(f)
			if _, err := f.tryStart(); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func commandWith(key, value string) []runnerscripts.SlashCommand {
	return []runnerscripts.SlashCommand{{Name: "c", Content: "x", Frontmatter: map[string]any{key: value}}}
}

func TestOtherVersionThanTheTestedOnesIsRefusedAtSetup(t *testing.T) {
	t.Parallel()
	for version, fits := range map[string]bool{"1.99.0": true, "0.15.3": false, "2.0.0": false, "Usage: of something else": false} {
		f := newFake(t, "version "+version)
		_, err := f.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session})
		if fits && err != nil || !fits && (!agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), testedVersion)) {
			t.Errorf("version %s: %v", version, err)
		}
	}
}

func TestNoProgramOfThatKindIsAClearError(t *testing.T) {
	t.Parallel()
	f := newFake(t, "any")
	file := filepath.Join(t.TempDir(), programName)
	if err := os.WriteFile(file, []byte("\x7fELF of another platform"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.Session.Agent.Command = []string{file}
	if _, err := f.tryStart(); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.command") {
		t.Errorf("error %v", err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*runnerscripts.Session){
		"a config that is no object": func(s *runnerscripts.Session) { s.Agent.Config = []byte(`[]`) },
		"agents that are no objects": func(s *runnerscripts.Session) { s.Agent.Config = []byte(`{"agent":{"build":1}}`) },
		"a folder for transcripts":   func(s *runnerscripts.Session) { s.Agent.Env = map[string]string{"XDG_DATA_HOME": "/x"} },
		"a password of its own":      func(s *runnerscripts.Session) { s.Agent.Env = map[string]string{"OPENCODE_SERVER_PASSWORD": "x"} },
		"a negative turn limit":      func(s *runnerscripts.Session) { s.Agent.MaxTurns = -1 },
		"a model without provider":   func(s *runnerscripts.Session) { s.Agent.Model = "claude" },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			s := agenttest.NewSession(t, "any", programName)
			spoil(&s)
			_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("start: %v", err)
			}
			_, err = Driver{}.Transcript(t.Context(), runnerscripts.TranscriptRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("transcript: %v", err)
			}
		})
	}
}

func TestRestoreRefusesWhatIsNoExport(t *testing.T) {
	t.Parallel()
	const good = `{"info":{"id":"ses_1"},"messages":[]}`
	for name, tr := range map[string]runnerscripts.Transcript{
		"of another agent":       {Main: `{"type":"user"}` + "\n" + `{"type":"assistant"}`},
		"with an id like a path": {Main: `{"info":{"id":"../../evil"},"messages":[]}`},
		"with a bad subagent":    {Main: good, Subagents: []runnerscripts.SubagentTranscript{{ID: "x", Transcript: "y"}}},
	} {
		s := agenttest.NewSession(t, "any", programName)
		if err := restore(t.Context(), s, tr); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
