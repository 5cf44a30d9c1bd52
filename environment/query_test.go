package environment

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// tenLines is a complete runner script.
const tenLines = `
read -r request
echo '{"type":"query_started","payload":{"prompt":"?"}}'
echo hello > hello.txt
echo '{"type":"agent_message_chunk","payload":{"blockId":"1","content":{"type":"text","text":"done"}}}'
echo '{"type":"query_completed","payload":{"stop_reason":"end_turn"}}'
echo '{"type":"result","ok":true}'
`

// patient is a script that stays alive. It prints its process ID. During a query with the prompt
// "wait", it waits for the next line of its input.
const patient = `
end() { echo '{"type":"query_completed","payload":{"stop_reason":"'$1'"}}'; }
turn() {
	echo '{"type":"query_started"}'
	echo '{"type":"agent_message_chunk","payload":{"blockId":"1","content":{"type":"text","text":"'$$'"}}}'
	case "$1" in
	*'"die"'*) exit 7 ;;
	*'"wait"'*)
		read -r line
		case "$line" in
		*interrupt*) end cancelled; return ;;
		*) echo '{"type":"raw","payload":'"$line"'}' ;;
		esac ;;
	esac
	end end_turn
}
read -r request
turn "$request"
while read -r line; do
	case "$line" in
	*'"type":"prompt"'*) turn "$line" ;;
	*'"type":"shutdown"'*) break ;;
	*) echo '{"type":"raw","payload":'"$line"'}' ;;
	esac
done
echo '{"type":"result","ok":true}'
`

func TestAScriptOfTenLinesIsARunner(t *testing.T) {
	noFilesLeft(t)
	env := withQuery(t, tenLines)
	for range 2 {
		events, err := collect(t.Context(), env, Query{Prompt: "write", ID: "q1"})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := types(events), "query_started agent_message_chunk query_completed"; got != want {
			t.Fatalf("events %q, want %q", got, want)
		}
		ev := events[1]
		if ev.Text() != "done" || ev.SessionID != env.SessionID() || ev.QueryID != "q1" ||
			ev.Source != runnerscripts.SourceRunner || ev.ConversationID != runnerscripts.MainConversation || ev.Time.IsZero() {
			t.Errorf("the event is not filled in: %+v", ev)
		}
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), env, Query{Prompt: "again"}); !errors.Is(err, ErrClosed) {
		t.Errorf("a query after Close: %v, want ErrClosed", err)
	}
}

// said returns the agent's text, here the script's process ID.
func said(t *testing.T, events []runnerscripts.Event) string {
	t.Helper()
	for _, ev := range events {
		if s := ev.Text(); s != "" {
			return s
		}
	}
	t.Fatalf("nothing was said in %q", types(events))
	return ""
}

func TestTheAgentStaysAliveBetweenQueries(t *testing.T) {
	env := withQuery(t, patient)
	first, err := collect(t.Context(), env, Query{Prompt: "one"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := collect(t.Context(), env, Query{Prompt: "two"})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := said(t, first), said(t, second); a != b {
		t.Errorf("the second query was answered by process %s, the first by %s", b, a)
	}
	if first[0].QueryID == second[0].QueryID || first[0].QueryID == "" {
		t.Errorf("query ids %q and %q", first[0].QueryID, second[0].QueryID)
	}
}

func TestAnAgentThatDiedIsStartedAgain(t *testing.T) {
	env := withQuery(t, patient)
	first, err := collect(t.Context(), env, Query{Prompt: "die"})
	var script *ScriptError
	if !errors.As(err, &script) || script.Status.Code != 7 {
		t.Fatalf("error %v, want a ScriptError with code 7", err)
	}
	second, err := collect(t.Context(), env, Query{Prompt: "two"})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := said(t, first), said(t, second); a == b {
		t.Errorf("both queries were answered by process %s", a)
	}
	// An agent that is killed while it waits has not seen the next prompt.
	if _, err := primitives.Run(t.Context(), env.Primitive(), primitives.Command{Args: []string{"kill", "-9", said(t, second)}}, primitives.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	third, err := collect(t.Context(), env, Query{Prompt: "three"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := types(third), "query_started agent_message_chunk query_completed"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestAStoppedAgentEndsByItselfAndIsStartedAgain(t *testing.T) {
	env := withQuery(t, patient+"sleep 0.1; echo $$ > ended\n")
	if err := env.StopAgent(t.Context()); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	first, err := collect(t.Context(), env, Query{Prompt: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := env.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(workspaceOf(t, env)["ended"]); got != said(t, first) {
		t.Errorf("the agent %s was not left to end by itself: %q", said(t, first), got)
	}
	second, err := collect(t.Context(), env, Query{Prompt: "two"})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := said(t, first), said(t, second); a == b {
		t.Errorf("both queries were answered by process %s", a)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if err := env.StopAgent(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}

func TestOneQueryRunsAtATime(t *testing.T) {
	env := withQuery(t, patient)
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type != runnerscripts.TypeAgentMessage {
			continue
		}
		events, err := collect(t.Context(), env, Query{Prompt: "other"})
		if !errors.Is(err, ErrBusy) || len(events) != 0 {
			t.Errorf("second query: %v and %d events, want ErrBusy and none", err, len(events))
		}
		if _, err := env.PrepareSession(t.Context(), Setup{}); !errors.Is(err, ErrBusy) {
			t.Errorf("PrepareSession: %v, want ErrBusy", err)
		}
		if err := env.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInterruptCompletesTheQueryAsCancelled(t *testing.T) {
	env := withQuery(t, patient)
	if err := env.Interrupt(t.Context()); err != nil {
		t.Errorf("interrupt without a query: %v", err)
	}
	var last runnerscripts.Event
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeAgentMessage {
			if err := env.Interrupt(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		last = ev
	}
	done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](last)
	if err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("last event %s %s", last.Type, last.Payload)
	}
}

func TestAnInterruptDuringPreparationIsNotLost(t *testing.T) {
	dir := t.TempDir()
	preparing, proceed := filepath.Join(dir, "preparing"), filepath.Join(dir, "proceed")
	for _, name := range []string{preparing, proceed} {
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := create(t, Config{Scripts: Scripts{
		SetupSession: shell(`cat >/dev/null; echo >` + preparing + `; read -r x <` + proceed + `; echo '{"type":"result","ok":true}'`),
		ExecuteQuery: shell(patient),
	}})
	ended, prepared := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		events, err := collect(t.Context(), env, Query{Prompt: "wait"})
		if err != nil {
			t.Error(err)
		}
		if got, want := types(events), "query_started agent_message_chunk query_completed"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
	}()
	go func() { // waits for the script
		_, err := os.ReadFile(preparing)
		prepared <- err
	}()
	select {
	case err := <-prepared:
		if err != nil {
			t.Fatal(err)
		}
	case <-ended:
		t.Fatal("the session was not prepared")
	}
	if err := env.Interrupt(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(proceed, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// A runner whose start was interrupted drops the next prompt and exits with status 0.
func TestInterruptOfAStartLeavesTheNextPromptToAFreshAgent(t *testing.T) {
	begun := filepath.Join(t.TempDir(), "begun")
	env := withQuery(t, `
		if mkdir `+begun+` 2>/dev/null; then
			read -r request; echo '{"type":"log"}'; read -r interrupt
			`+started+`echo '{"type":"query_completed","payload":{"stop_reason":"cancelled"}}'
			read -r prompt; echo '{"type":"result","ok":true}'; exit 0
		fi; `+patient)
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "first"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeLog {
			if err := env.Interrupt(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	events, err := collect(t.Context(), env, Query{Prompt: "second"})
	if got, want := types(events), "query_started agent_message_chunk query_completed"; err != nil || got != want {
		t.Errorf("the second query: %q, %v, want %q", got, err, want)
	}
}

func TestLeavingTheLoopInterruptsTheQuery(t *testing.T) {
	env := withQuery(t, patient)
	env.queries.Grace = time.Minute // a busy machine may take long to interrupt
	var first string
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
		if err != nil {
			t.Fatal(err)
		}
		if first = ev.Text(); first != "" {
			break
		}
	}
	events, err := collect(t.Context(), env, Query{Prompt: "next"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := types(events), "query_started agent_message_chunk query_completed"; got != want {
		t.Errorf("the next query sees %q, want %q", got, want)
	}
	if said(t, events) != first {
		t.Error("the agent did not survive the interrupt")
	}
}

func TestACancelledContextInterruptsPolitelyThenKills(t *testing.T) {
	cause := errors.New("enough")
	for name, c := range map[string]struct{ script, want string }{
		"heeds":   {patient, "query_started agent_message_chunk query_completed"},
		"ignores": {strings.Replace(patient, "read -r line\n\t\tcase", "sleep 1000\n\t\tcase", 1), "query_started agent_message_chunk query_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			env := withQuery(t, c.script)
			env.queries.Grace = time.Minute // a busy machine may take long to interrupt
			if name == "ignores" {
				env.queries.Grace, env.queries.Margin = 10*time.Millisecond, 0
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var events []runnerscripts.Event
			var last error
			for ev, err := range env.ExecuteQuery(ctx, Query{Prompt: "wait"}) {
				if err != nil {
					last = err
					break
				}
				if events = append(events, ev); ev.Text() != "" {
					cancel(cause)
				}
			}
			if !errors.Is(last, cause) {
				t.Errorf("error %v, want the cause of the context", last)
			}
			if got := types(events); got != c.want {
				t.Errorf("events %q, want %q", got, c.want)
			}
			if events, err := collect(t.Context(), env, Query{Prompt: "next"}); err != nil {
				t.Errorf("the next query: %v after %q", err, types(events))
			}
		})
	}
}

func TestASecondInterruptIsNone(t *testing.T) {
	env := withQuery(t, strings.Replace(patient, "*interrupt*) end", `*interrupt*) read -r line; echo '{"type":"raw","payload":'"$line"'}'; end`, 1))
	env.queries.Grace = time.Hour
	var next string
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait", ID: "q"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev.Type {
		case runnerscripts.TypeAgentMessage:
			if err := errors.Join(env.Interrupt(t.Context()), env.Interrupt(t.Context()), env.SetMode(t.Context(), "m")); err != nil {
				t.Error(err)
			}
		case runnerscripts.TypeRaw:
			next = string(ev.Payload)
		}
	}
	if want := `{"type":"set_mode","value":"m"}`; next != want {
		t.Errorf("after the interrupt came %s, want %s", next, want)
	}
}

func TestControlsReachTheAgent(t *testing.T) {
	env := withQuery(t, patient)
	if err := env.Respond(t.Context(), "1", runnerscripts.PermissionDecision{}); !errors.Is(err, ErrNoQuery) {
		t.Errorf("respond without a query: %v, want ErrNoQuery", err)
	}
	if err := env.Respond(t.Context(), "", runnerscripts.PermissionDecision{}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("respond without an id: %v, want fs.ErrInvalid", err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	env = withQuery(t, started+`echo '{"type":"request_permission","payload":{"id":"p1"}}'; read -r request; read -r line
		echo '{"type":"raw","payload":'"$line"'}'; `+completed)
	var got string
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev.Type {
		case runnerscripts.TypePermissionRequest:
			if err := env.Respond(t.Context(), "p2", allow); !errors.Is(err, ErrNotPending) {
				t.Errorf("respond to no request: %v, want ErrNotPending", err)
			}
			if err := env.Respond(t.Context(), "p1", runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
				t.Fatal(err)
			}
		case runnerscripts.TypeRaw:
			got = string(ev.Payload)
		}
	}
	if want := `{"type":"permission","id":"p1","decision":{"kind":"allow_once"}}`; got != want {
		t.Errorf("the script read %s, want %s", got, want)
	}
}

func TestModeAndModelReachTheAgentNowAndLater(t *testing.T) {
	env := withQuery(t, `read -r request; echo '{"type":"query_started"}'; echo '{"type":"raw","payload":'"$request"'}'
		echo '{"type":"query_completed"}'; while read -r line; do echo '{"type":"raw","payload":'"$line"'}'; done`)
	if err := env.SetModel(t.Context(), "m1"); err != nil {
		t.Fatal(err)
	}
	if err := env.SetMode(t.Context(), ""); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("an empty mode: %v, want fs.ErrInvalid", err)
	}
	events, err := collect(t.Context(), env, Query{Prompt: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(events[1].Payload), `"model":"m1"`) {
		t.Errorf("the agent was started with %s", events[1].Payload)
	}
}

func TestAnEmptyPromptIsRefused(t *testing.T) {
	env := withQuery(t, patient)
	if events, err := collect(t.Context(), env, Query{}); !errors.Is(err, fs.ErrInvalid) || len(events) != 0 {
		t.Errorf("%v and %d events, want fs.ErrInvalid and none", err, len(events))
	}
}
