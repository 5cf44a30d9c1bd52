package environment

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestRunReturnsTheResultOfAPrompt(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: box, Agent: scenario(t, turn(
			runnerscripts.ScenarioStep{Text: "I am going to write f and g."},
			runnerscripts.ScenarioStep{Write: write("f", "1")},
			runnerscripts.ScenarioStep{Ask: &runnerscripts.ScenarioStep{Write: write("g", "1")}},
			runnerscripts.ScenarioStep{Text: "I was allowed"},
			runnerscripts.ScenarioStep{Text: "to write f only."},
		))})
		res, err := env.Run(t.Context(), "go")
		if err != nil {
			t.Fatal(err)
		}
		if res.Text != "I was allowed\n\nto write f only." || res.StopReason != runnerscripts.StopEndTurn || res.Duration <= 0 {
			t.Errorf("result %+v", res)
		}
		if len(res.Changes) != 1 || res.Changes[0].Path != "f" || res.Changes[0].Kind != Created {
			t.Errorf("changes %+v", res.Changes)
		}
		if len(res.Rejected) != 1 || !strings.Contains(res.Rejected[0], "g") {
			t.Errorf("rejected %q", res.Rejected)
		}
	})
}

func TestTheTextOfAResultIsWhatWasSaidLast(t *testing.T) {
	chunk := func(id, text, more string) string {
		return `{"type":"agent_message_chunk","payload":{"blockId":"` + id + `","content":{"type":"text","text":"` + text + `"}` + more + `}}`
	}
	tool := `{"type":"tool_call","payload":{"toolCallId":"t"}}`
	for name, c := range map[string]struct {
		events []string
		want   string
	}{
		"chunks of a block":         {[]string{chunk("1", "Hel", ""), chunk("1", "lo", "")}, "Hello"},
		"blocks":                    {[]string{chunk("1", "one", ""), chunk("2", "two", "")}, "one\n\ntwo"},
		"a snapshot":                {[]string{chunk("1", "onr", ""), chunk("1", "one", `,"snapshot":true`)}, "one"},
		"a block that is withdrawn": {[]string{chunk("1", "x", ""), chunk("2", "two", ""), chunk("1", "", `,"snapshot":true`)}, "two"},
		"after a tool":              {[]string{chunk("1", "I will", ""), tool, chunk("2", "I did", "")}, "I did"},
		"nothing after a tool":      {[]string{chunk("1", "I will", ""), tool}, "I will"},
		"an update between":         {[]string{tool, chunk("1", "one", ""), strings.Replace(tool, "tool_call", "tool_call_update", 1), chunk("1", " two", "")}, "one two"},
		"a subagent's":              {[]string{chunk("1", "mine", ""), strings.Replace(chunk("2", "other", ""), "{", `{"conversation_id":"c",`, 1)}, "mine"},
		"nothing":                   {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			env := withQuery(t, started+`cat <<'END'
`+strings.Join(c.events, "\n")+`
END
`+completed+`cat`)
			res, err := env.Run(t.Context(), "x")
			if err != nil || res.Text != c.want {
				t.Errorf("text %q, %v, want %q", res.Text, err, c.want)
			}
		})
	}
}

func TestRunSaysHowAQueryEndedThatDidNotComplete(t *testing.T) {
	used := `"usage":{"input_tokens":1,"cache_read_tokens":20,"cache_write_tokens":300}`
	env := withQuery(t, started+`echo '{"type":"query_failed","payload":{"code":"api","message":"overloaded",`+used+`}}'; cat`)
	res, err := env.Run(t.Context(), "x")
	if failed := (*QueryError)(nil); !errors.As(err, &failed) || failed.Failure.Code != runnerscripts.FailAPI || res.Usage.TotalInput() != 321 {
		t.Errorf("a failure: %+v, %v", res, err)
	}
	for name, c := range map[string]struct {
		stop func(*Environment, context.CancelCauseFunc)
		want error
	}{
		"an interrupt": {func(e *Environment, _ context.CancelCauseFunc) { _ = e.Interrupt(t.Context()) }, nil},
		"the context":  {func(_ *Environment, cancel context.CancelCauseFunc) { cancel(errEnough) }, errEnough},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		env = create(t, Config{Agent: asksForF(t), OnPermission: func(ctx context.Context, req PermissionRequest) PermissionDecision {
			c.stop(env, cancel)
			<-ctx.Done()
			return req.Allow()
		}})
		if res, err := env.Run(ctx, "x"); !errors.Is(err, c.want) || res.StopReason != runnerscripts.StopCancelled {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		cancel(nil)
	}
}

var errEnough = errors.New("enough")

func TestExecReturnsTheOutputAndAnErrorForTheStatus(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: box, Agent: Agent{Env: map[string]string{"API_KEY": "hunter2hunter2"}}, Workspace: []Source{{Files: []File{{Path: "f", Content: "1"}}}}})
		out, err := env.Exec(t.Context(), "sh", "-c", `cat f; echo "$API_KEY"; echo err >&2`)
		if err != nil || out != "1\nerr\n" {
			t.Errorf("output %q, %v", out, err)
		}
		out, err = env.Exec(t.Context(), "sh", "-c", "echo no; exit 3")
		failed := (*ExitError)(nil)
		if !errors.As(err, &failed) || failed.Status.Code != 3 || failed.Output != out || out != "no\n" || !slices.Contains(failed.Args, "-c") {
			t.Errorf("output %q, %v", out, err)
		}
		if _, err = env.Exec(t.Context(), "no-such-program"); !errors.Is(err, primitives.ErrCommandNotFound) || errors.As(err, &failed) {
			t.Errorf("an unknown program: %v", err)
		}
		if _, err = env.Exec(t.Context()); err == nil {
			t.Error("no command is no error")
		}
	})
}

func TestExecEndsWithItsContextAndWithTheEnvironment(t *testing.T) {
	env := create(t, Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	if _, err := env.Exec(ctx, "sleep", "600"); !errors.Is(err, errEnough) {
		t.Errorf("error %v, want the context's cause", err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := env.Exec(t.Context(), "true"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}

func TestExecSaysWhatItLeavesOut(t *testing.T) {
	env := create(t, Config{})
	out, err := env.Exec(t.Context(), "head", "-c", "10485860", "/dev/zero")
	if err != nil || !strings.HasSuffix(out, "\n[100 bytes were left out]\n") {
		t.Errorf("the output ends with %q, %v", tail.Of(out), err)
	}
}
