package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/drivertest"
	"github.com/agentenv-dev/agentenv/session"
)

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() || serveExecutor() {
		return
	}
	testleak.Main(m)
}

// echo is a persistent executor: it answers "echo: <prompt>" to each turn. It writes its input to
// the file "got", and a line for each start to the file "starts".
const echo = `echo start >> starts
while read -r line; do
	printf '%s\n' "$line" >> got
	case $line in
	*'"type":"shutdown"'*) echo bye >> got; exit 0;;
	esac
	prompt=${line#*'"prompt":"'}
	prompt=${prompt%%'"'*}
	case $prompt in
	crash) echo 'the real reason' >&2; exit 3;;
	leave) exit 0;;
	silent) ;;
	noise) echo 'loading ...'; echo; echo '{"type":"turn_complete","result":"done"}';;
	events)
		echo '{"type":"agent_thought_chunk","payload":{"content":{"type":"text","text":"hm"}}}'
		echo '{"type":"agent_message_chunk","payload":{"content":{"type":"text","text":"one "}}}'
		echo '{"type":"agent_message_chunk","payload":{"content":{"type":"text","text":"text"}}}'
		echo '{"type":"tool_call","payload":{"toolCallId":"t","title":"look","kind":"read","status":"completed"}}'
		echo '{"type":"query_completed","payload":{}}'
		echo '{"type":"turn_complete","result":{"answer":42}}';;
	*) printf '{"type":"turn_complete","result":"echo: %s"}\n' "$prompt";;
	esac
done
echo eof >> got`

func TestALineOverTheLimitIsErrLimit(t *testing.T) {
	err := (&conversation{}).read(strings.NewReader(strings.Repeat("x", runnerscripts.DefaultMaxLine+1)))
	if !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("read fails with %v", err)
	}
}

// fixture is a session whose executor is a shell script.
type fixture struct {
	*drivertest.Fixture
	driver *Driver
}

func newFixture(t *testing.T, lifecycle, script string) *fixture {
	t.Helper()
	d := new(Driver)
	f := &fixture{drivertest.New(t, d, name), d}
	file := filepath.Join(t.TempDir(), "executor.sh")
	agenttest.WriteFile(t, file, script)
	f.setProfile(map[string]any{
		"type": "echo", "command": []string{"/bin/sh", file}, "lifecycle": lifecycle, "config": map[string]string{"model": "m"},
	})
	return f
}

func (f *fixture) setProfile(p any) {
	raw, err := json.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Session.Agent.Config = raw
}

func (f *fixture) prompt(c agent.Conversation, text string) {
	f.Helper()
	done, err := c.Prompt(f.Context(), "query", text)
	if err != nil || done.StopReason != runnerscripts.StopEndTurn {
		f.Fatalf("prompt %q: %q, %v", text, done.StopReason, err)
	}
}

func (f *fixture) file(name string) string {
	f.Helper()
	data, err := os.ReadFile(filepath.Join(f.Session.Paths.Workspace, name))
	if err != nil {
		f.Fatal(err)
	}
	return string(data)
}

func TestPersistentExecutorIsStartedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", echo)
	f.Session.Agent.SystemPrompt = "Be brief."
	c := f.Start()
	f.prompt(c, "one")
	f.prompt(c, "two")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := f.Said(); got != "echo: one\necho: two\n" {
		t.Errorf("it said %q", got)
	}
	lines := strings.Split(strings.TrimSpace(f.file("got")), "\n")
	if len(lines) != 4 || lines[1] != `{"type":"turn","parameters":{"prompt":"two"}}` || lines[3] != "bye" || f.file("starts") != "start\n" {
		t.Fatalf("it got %q", lines)
	}
	want := map[string]any{
		"schema_version": "2.2", "mode": "start", "session_id": f.Session.SessionID,
		"parameters": map[string]string{"prompt": "one"}, "project_dir": f.Session.Paths.Workspace,
		"agent_blueprint": map[string]string{"name": "echo", "system_prompt": "Be brief."},
		"executor_config": map[string]string{"model": "m"},
	}
	if got := agenttest.Show(t, json.RawMessage(lines[0])); got != agenttest.Show(t, want) {
		t.Errorf("the invocation is %s", got)
	}
	f.SameAsTranscript()
}

func TestSessionIsResumedInANewProcessAndInAnotherSandbox(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", echo)
	c := f.Start()
	f.prompt(c, "one")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f.prompt(f.Start(), "two")
	tr := f.SameAsTranscript()
	if !strings.Contains(f.file("got"), `"mode":"resume"`) {
		t.Errorf("it got %s", f.file("got"))
	}
	f.Session.Paths = agenttest.NewSession(t, f.Session.SessionID, name).Paths
	if _, err := f.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session, Transcript: &tr}); err != nil {
		t.Fatal(err)
	}
	f.prompt(f.Start(), "three")
	if !strings.Contains(f.file("got"), `"mode":"resume"`) {
		t.Errorf("it got %s", f.file("got"))
	}
	f.SameAsTranscript()
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 3 || init[0].Resumed || !init[1].Resumed || !init[2].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
}

func TestOneShotExecutorSaysItsOutput(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "", `read -r line; printf '%s\n' "$line" >> got; printf '# Title\n\nText of %s\n' "$AGENT_SESSION_ID"; read -r more || echo end`)
	c := f.Start()
	f.prompt(c, "one")
	f.prompt(c, "two")
	want := "# Title\n\nText of " + f.Session.SessionID + "\nend\n\n"
	if got := f.Said(); got != want+want {
		t.Errorf("it said %q, want %q twice", got, want)
	}
	lines := strings.Split(strings.TrimSpace(f.file("got")), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"mode":"start"`) || !strings.Contains(lines[1], `"mode":"resume"`) {
		t.Errorf("it got %q", lines)
	}
	f.SameAsTranscript()
}

func TestEventsOfAnExecutorArePassedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", echo)
	f.prompt(f.Start(), "events")
	var kinds []session.BlockKind
	for _, b := range agenttest.Fold(t, f.Out.All()).Blocks {
		kinds = append(kinds, b.Kind)
	}
	want := []session.BlockKind{session.BlockUser, session.BlockThought, session.BlockAgent, session.BlockTool, session.BlockAgent}
	if agenttest.Show(t, kinds) != agenttest.Show(t, want) || f.Said() != "one text\n{\"answer\":42}\n" {
		t.Errorf("blocks %v, it said %q", kinds, f.Said())
	}
	// An executor may not send query_completed, which only the runner reports.
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || !strings.Contains(logs[0].Message, "query_completed") {
		t.Errorf("logs: %+v", logs)
	}
	f.SameAsTranscript()
}

func TestNoiseOfAPersistentExecutorIsLogged(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", echo)
	f.prompt(f.Start(), "noise")
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || !strings.Contains(string(logs[0].Data), "loading") || f.Said() != "done\n" {
		t.Errorf("it said %q, logs: %+v", f.Said(), logs)
	}
}

func TestStandardErrorOfAnExecutorIsLogged(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "", "")
	// Without agent.config, agent.command alone describes the executor.
	f.Session.Agent.Config, f.Session.Agent.Command = nil, []string{"/bin/sh", "-c", `cat > /dev/null; echo 'here I am' >&2; echo answer`}
	f.prompt(f.Start(), "go")
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || logs[0].Stream != "stderr" || logs[0].Message != "here I am" || f.Said() != "answer\n\n" {
		t.Errorf("it said %q, logs: %+v", f.Said(), logs)
	}
}

func TestExecutorThatFailsFailsTheQueryAndTheNextOneGoesOn(t *testing.T) {
	t.Parallel()
	for prompt, word := range map[string]string{
		"crash": "the executor failed: it ended: exit status 3: the real reason; the next", "leave": "the executor did not complete the turn: it ended; print a turn_complete",
	} {
		t.Run(prompt, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "persistent", echo)
			c := f.Start()
			if _, err := c.Prompt(t.Context(), "q", prompt); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.HasPrefix(err.Error(), word) {
				t.Errorf("error %v", err)
			}
			f.prompt(c, "again")
			if !strings.Contains(f.file("got"), `"mode":"resume"`) {
				t.Errorf("it got %s", f.file("got"))
			}
		})
	}
	t.Run("one_shot", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "one_shot", "echo half; echo why >&2; exit 4")
		if _, err := f.Start().Prompt(t.Context(), "q", "x"); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.HasPrefix(err.Error(), "the executor failed: it ended: exit status 4: why") {
			t.Errorf("error %v", err)
		}
		if f.Said() != "half\n\n" {
			t.Errorf("it said %q", f.Said())
		}
	})
}

func TestInterruptEndsTheExecutorAndTheNextPromptResumes(t *testing.T) {
	t.Parallel()
	for _, lifecycle := range []string{"one_shot", "persistent"} {
		t.Run(lifecycle, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, lifecycle, `read -r line
case $line in *hang*)
	echo '{"type":"agent_message_chunk","payload":{"content":{"type":"text","text":"I begin"}}}'
	exec sleep 600;;
esac
echo '{"type":"turn_complete","result":"done"}'`)
			c := f.Start()
			result := promptLater(t.Context(), c, "hang")
			f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
			for range 2 { // the second interrupt does nothing
				if err := c.Interrupt(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if o := <-result; o.err != nil || o.done.StopReason != runnerscripts.StopCancelled {
				t.Errorf("ended with %q, %v", o.done.StopReason, o.err)
			}
			f.prompt(c, "again")
			if err := c.Interrupt(t.Context()); err != nil {
				t.Errorf("without a query: %v", err)
			}
		})
	}
}

func TestASilentProgramIsEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", echo)
	f.driver.silence = 200 * time.Millisecond
	c := f.Start()
	if _, err := c.Prompt(t.Context(), "q", "silent"); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "200ms") {
		t.Errorf("error %v", err)
	}
	c.(*conversation).silence = time.Minute // a busy machine may take longer to start a program
	f.prompt(c, "again")
}

func TestInvalidProfileIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		profile string
		change  func(*runnerscripts.Agent)
		code    runnerscripts.FailureCode
		word    string
	}{
		"none":           {``, nil, runnerscripts.FailInvalidRequest, "agent.command"},
		"unknown field":  {`{"type":"x","command":"/bin/sh","x":1}`, nil, runnerscripts.FailInvalidRequest, `"x"`},
		"no command":     {`{"type":"x"}`, nil, runnerscripts.FailInvalidRequest, "agent.command"},
		"two commands":   {`{"type":"x","command":"/bin/sh"}`, func(a *runnerscripts.Agent) { a.Command = []string{"/bin/sh"} }, runnerscripts.FailInvalidRequest, "leave one of them out"},
		"life":           {`{"type":"x","command":"/bin/sh","lifecycle":"for ever"}`, nil, runnerscripts.FailInvalidRequest, "one_shot"},
		"agents folder":  {`{"type":"x","command":"/bin/sh","agents_dir":"a"}`, nil, runnerscripts.FailUnsupported, "agents_dir"},
		"not installed":  {`{"type":"x","command":"no-such-program"}`, nil, runnerscripts.FailAgentMissing, "no-such-program"},
		"model":          {`{"type":"x","command":"/bin/sh"}`, func(a *runnerscripts.Agent) { a.Model = "m" }, runnerscripts.FailUnsupported, "agent.model"},
		"mode":           {`{"type":"x","command":"/bin/sh"}`, func(a *runnerscripts.Agent) { a.PermissionMode = "m" }, runnerscripts.FailUnsupported, "agent.permission_mode"},
		"limit of turns": {`{"type":"x","command":"/bin/sh"}`, func(a *runnerscripts.Agent) { a.MaxTurns = 1 }, runnerscripts.FailUnsupported, "agent.max_turns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSession(t, agent.NewUUID(), "command")
			s.Agent.Config = json.RawMessage(tt.profile)
			if tt.change != nil {
				tt.change(&s.Agent)
			}
			if _, err := (Driver{}).Setup(t.Context(), runnerscripts.SetupRequest{Session: s}); !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestUnsupportedFeaturesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", echo)
	c := f.Start()
	if err := c.SetMode(t.Context(), "x"); !agenttest.HasCode(err, runnerscripts.FailUnsupported) {
		t.Errorf("mode: %v", err)
	}
	if err := c.SetModel(t.Context(), "x"); !agenttest.HasCode(err, runnerscripts.FailUnsupported) {
		t.Errorf("model: %v", err)
	}
	if err := c.Respond(t.Context(), "x", runnerscripts.PermissionDecision{}); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("answer: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prompt(t.Context(), "q", "x"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("a prompt after close: %v", err)
	}
}
