package environment

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	started   = `echo '{"type":"query_started"}'; `
	completed = `echo '{"type":"query_completed","payload":{"stop_reason":"end_turn"}}'; `
)

// A script that misbehaves causes a typed error or a log event, and never a completed query.
func TestMisbehavingScripts(t *testing.T) {
	const failed = "query_started query_failed"
	cases := map[string]struct {
		script string
		events string
		check  func(*ScriptError) bool // nil: the query completes
	}{
		"a code is in the error with the end of standard error": {
			started + `echo "it broke" >&2; exit 3`, failed,
			func(e *ScriptError) bool {
				return e.Status.Code == 3 && e.Stderr == "it broke\n" && strings.Contains(e.Error(), "it broke")
			},
		},
		"a signal is in the error": {
			started + `kill -9 $$`, failed,
			func(e *ScriptError) bool {
				return e.Status.Signal == primitives.SIGKILL && e.Status.Reason == primitives.ReasonSignaled
			},
		},
		"an end without query_completed is an error": {
			started + `exit 0`, failed,
			func(e *ScriptError) bool { return errors.Is(e, query.ErrNotCompleted) && e.Status.Success() },
		},
		"an end before query_started is an error": {
			`exit 0`, "query_failed",
			func(e *ScriptError) bool { return errors.Is(e, query.ErrNotStarted) },
		},
		"a result does not replace query_completed": {
			started + `echo '{"type":"result","ok":true}'`, failed,
			func(e *ScriptError) bool { return errors.Is(e, query.ErrResultTooSoon) },
		},
		"a failure that the script reports is in the error": {
			`echo '{"type":"result","ok":false,"error":{"code":"agent_missing","message":"install it"}}'; exit 1`, "query_failed",
			func(e *ScriptError) bool {
				var f *runnerscripts.ScriptFailure
				return errors.As(e, &f) && f.Code == runnerscripts.FailAgentMissing && strings.HasPrefix(f.Message, "install it")
			},
		},
		"a result that is no JSON of a result is an error": {
			started + `echo '{"type":"result","ok":"maybe"}'; sleep 1000`, failed,
			func(e *ScriptError) bool { return e.Err != nil && e.Failure == nil },
		},
		"a malformed query_completed completes nothing": {
			started + `echo '{"type":"query_completed","payload":{"stop_reason":7}}'; sleep 1000`, failed,
			func(e *ScriptError) bool { return e.Err != nil },
		},
		"garbage is a log event": {
			started + `echo "Welcome to my shell!"; echo '[1,2]'; echo '{"no":"type"}'; ` + completed,
			"query_started log log log query_completed", nil,
		},
		"half a line at the end is a log event": {
			started + `printf '{"type":"query_comp'`, "query_started log query_failed",
			func(e *ScriptError) bool { return errors.Is(e, query.ErrNotCompleted) },
		},
		"the last line needs no line end": {
			started + `printf '{"type":"query_completed"}'`, "query_started query_completed", nil,
		},
		"bytes that are not UTF-8 are replaced and reported": {
			started + `printf '{"type":"log","payload":{"message":"a\377b"}}\n'; ` + completed, "query_started log log query_completed", nil,
		},
		"an unknown type is carried through": {
			started + `echo '{"type":"from_the_future","new":1}'; ` + completed, "query_started from_the_future query_completed", nil,
		},
		"a line of 30 MB is read": {
			started + `printf '{"type":"log","payload":{"level":"info","message":"'; head -c 30000000 /dev/zero | tr '\0' x; echo '"}}'; ` + completed,
			"query_started log query_completed", nil,
		},
		"20 MB of garbage on a line are a log event": {
			started + `head -c 20000000 /dev/zero | tr '\0' x; echo; ` + completed, "query_started log query_completed", nil,
		},
		"a line over the limit is an error": {
			started + `head -c 3000000 /dev/zero | tr '\0' x; echo; ` + completed, failed,
			func(e *ScriptError) bool { return errors.Is(e, primitives.ErrLimit) },
		},
		"a lot of standard error does not block it": {
			started + `head -c 10000000 /dev/zero | tr '\0' e >&2; echo last >&2; exit 1`, failed,
			func(e *ScriptError) bool {
				return len(e.Stderr) == 16<<10 && strings.HasSuffix(e.Stderr, "elast\n")
			},
		},
		"a child that holds the output does not keep it open": {
			started + `sleep 1000 & exit 4`, failed,
			func(e *ScriptError) bool { return e.Status.Code == 4 },
		},
		"a script that closes its output and stays is ended": {
			started + `exec >&-; exec sleep 1000`, failed,
			func(e *ScriptError) bool { return errors.Is(e, script.ErrStaysOpen) },
		},
		"secrets are blotted out of standard error": {
			started + `echo "key is $API_KEY" >&2; exit 1`, failed,
			func(e *ScriptError) bool {
				return e.Stderr == "key is [redacted]\n" && !strings.Contains(e.Error(), "hunter2hunter2")
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			env := create(t, Config{
				Agent:   Agent{Env: map[string]string{"API_KEY": "hunter2hunter2"}},
				Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(c.script)},
			})
			if strings.Contains(name, "over the limit") {
				env.scripts.MaxLine = 1 << 20
			}
			events, err := collect(t.Context(), env, Query{Prompt: "x"})
			if got := types(events); got != c.events {
				t.Errorf("events %q, want %q", got, c.events)
			}
			if c.check == nil {
				if err != nil {
					t.Errorf("error %v, want none", err)
				}
				return
			}
			var script *ScriptError
			if !errors.As(err, &script) {
				t.Fatalf("error %v, want a ScriptError", err)
			}
			if script.Script != runnerscripts.ExecuteQuery || !c.check(script) {
				t.Errorf("the error does not say it: %v (status %+v)", script, script.Status)
			}
		})
	}
}

func TestAScriptThatCannotBeStarted(t *testing.T) {
	for name, c := range map[string]struct {
		command []string
		want    error
	}{
		"no such program":       {[]string{"no-such-program"}, primitives.ErrCommandNotFound},
		"a NUL in an argument":  {[]string{"echo", "\x00"}, nil},
		"a program without a x": {[]string{"/etc/passwd"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			env := create(t, Config{Scripts: Scripts{SetupSession: c.command}})
			_, err := env.PrepareSession(t.Context(), Setup{})
			var script *ScriptError
			if !errors.As(err, &script) || script.Script != runnerscripts.SetupSession || script.Err == nil {
				t.Fatalf("error %v, want a ScriptError", err)
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestAQueryThatTheAgentFailedIsAQueryError(t *testing.T) {
	env := withQuery(t, started+`echo '{"type":"query_failed","payload":{"code":"api","message":"overloaded","http_status":529}}'; read -r line`)
	events, err := collect(t.Context(), env, Query{Prompt: "x"})
	if got, want := types(events), "query_started query_failed"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	var failed *QueryError
	if !errors.As(err, &failed) || failed.Failure.Code != runnerscripts.FailAPI || failed.Failure.HTTPStatus != 529 {
		t.Errorf("error %v, want a QueryError", err)
	}
}

func TestSetupAndTranscriptScriptsAreHeldToTheirResult(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   func(*ScriptError) bool
	}{
		"no result": {`cat >/dev/null`, func(e *ScriptError) bool { return errors.Is(e, script.ErrNoResult) }},
		"a code after a good result": {
			`cat >/dev/null; echo '{"type":"result","ok":true}'; exit 9`,
			func(e *ScriptError) bool { return e.Status.Code == 9 },
		},
		"a failure": {
			`cat >/dev/null; echo '{"type":"result","ok":false,"error":{"code":"protocol","message":"update"}}'`,
			func(e *ScriptError) bool { return e.Failure != nil && e.Failure.Code == runnerscripts.FailProtocol },
		},
		"not ok without a reason": {
			`cat >/dev/null; echo '{"type":"result","ok":false}'`,
			func(e *ScriptError) bool { return errors.Is(e, script.ErrNoReason) },
		},
		"data of another shape": {
			`cat >/dev/null; echo '{"type":"result","ok":true,"data":[]}'`,
			func(e *ScriptError) bool { return e.Err != nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := create(t, Config{Scripts: Scripts{SetupSession: shell(c.script), ReadTranscript: shell(c.script)}})
			_, setup := env.PrepareSession(t.Context(), Setup{})
			_, transcript := env.ReadTranscript(t.Context())
			for script, err := range map[string]error{runnerscripts.SetupSession: setup, runnerscripts.ReadTranscript: transcript} {
				var e *ScriptError
				if !errors.As(err, &e) || e.Script != script || !c.want(e) {
					t.Errorf("%s: %v", script, err)
				}
			}
		})
	}
}
