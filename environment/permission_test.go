package environment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// askingMuch returns a script that requests permissions with awk and reads its input meanwhile.
// Then it reports how many requests were rejected.
func askingMuch(program string) string {
	return `exec 3<&0; (grep -c --line-buffered '"kind":"reject_once"' <&3 >/dev/null) & ` + started + `awk '
	function ask(id, input) { printf "{\"type\":\"request_permission\",\"payload\":{\"id\":\"%s\",\"toolCall\":{\"rawInput\":\"%s\"}}}\n", id, input }
	function resolve(id) { printf "{\"type\":\"permission_resolved\",\"payload\":{\"id\":\"%s\"}}\n", id }
	BEGIN {` + program + `}'; ` + completed + `wait`
}

func TestAnAnswerMakesRoomForARequest(t *testing.T) {
	env := withQuery(t, askingMuch(`for (i = 0; i < 1000; i++) ask(i, "")`))
	n := 0
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type != runnerscripts.TypePermissionRequest {
			continue
		}
		n++
		req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
		if err != nil {
			t.Fatal(err)
		}
		if err := env.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
			t.Fatal(err)
		}
	}
	if n != 1000 {
		t.Errorf("%d requests, want 1000", n)
	}
}

// resolutions returns how permission requests ended, by their IDs.
func resolutions(t *testing.T, events []runnerscripts.Event) map[string][]runnerscripts.PermissionResolved {
	t.Helper()
	all := make(map[string][]runnerscripts.PermissionResolved)
	for _, ev := range events {
		if ev.Type != runnerscripts.TypePermissionResolved {
			continue
		}
		done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
		if err != nil {
			t.Fatal(err)
		}
		all[done.ID] = append(all[done.ID], done)
	}
	return all
}

// Each request ends once, before its query, whatever the runner prints or leaves out.
func TestEachRequestHasOneResolution(t *testing.T) {
	const (
		ask     = `echo '{"type":"request_permission","payload":{"id":"p"}}'; `
		answer  = `read -r request; read -r answer; `
		resolve = `echo '{"type":"permission_resolved","payload":{"id":"p","kind":"%s","reason":"%s"}}'; `
	)
	allowed := fmt.Sprintf(resolve, "allow_once", "answered")
	rejected := fmt.Sprintf(resolve, "reject_once", "answered")
	withdrawn := fmt.Sprintf(resolve, "", "cancelled")
	for name, c := range map[string]struct {
		script       string
		on           func(context.Context, PermissionRequest) PermissionDecision
		kind, reason string
		end          string
	}{
		"answered":                        {ask + answer + allowed + completed, AllowAll, "allow_once", "answered", "query_completed"},
		"withdrawn":                       {ask + withdrawn + completed, AnswerLater, "", "cancelled", "query_completed"},
		"withdrawn twice":                 {ask + withdrawn + withdrawn + completed, AnswerLater, "", "cancelled", "query_completed"},
		"withdrawn while answered":        {ask + answer + withdrawn + completed, AllowAll, "", "cancelled", "query_completed"},
		"an answer that cannot be used":   {ask + answer + rejected + completed, AllowAll, "reject_once", "answered", "query_completed"},
		"allowed by the sandbox":          {ask + allowed + completed, AnswerLater, "", "cancelled", "query_completed"},
		"allowed against the answer":      {ask + answer + allowed + completed, RejectAll, "reject_once", "answered", "query_completed"},
		"not resolved":                    {ask + completed, AnswerLater, "", "cancelled", "query_completed"},
		"answered and not resolved":       {ask + answer + completed, AllowAll, "allow_once", "answered", "query_completed"},
		"the runner dies":                 {ask + `exit 3`, AnswerLater, "", "cancelled", "query_failed"},
		"the runner dies with the answer": {ask + answer + `exit 3`, AllowAll, "allow_once", "answered", "query_failed"},
		"the query fails":                 {ask + `echo '{"type":"query_failed"}'; read -r line`, AnswerLater, "", "cancelled", "query_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			env := create(t, Config{
				Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(started + c.script)}, OnPermission: c.on, PermissionTimeout: -1,
			})
			events, _ := collect(t.Context(), env, Query{Prompt: "x"}) // the events say how it ended
			if got, want := types(events), "query_started request_permission permission_resolved "+c.end; got != want {
				t.Fatalf("events %q, want %q", got, want)
			}
			want := runnerscripts.PermissionResolved{ID: "p", Kind: runnerscripts.PermissionKind(c.kind), Reason: c.reason}
			if got := resolutions(t, events)["p"]; got[0] != want {
				t.Errorf("resolved as %+v, want %+v", got[0], want)
			}
		})
	}
}

// asksAndResolves returns a script that asks for n permissions at once, and resolves each when
// it is answered.
func asksAndResolves(n int) string {
	return fmt.Sprintf(`read -r request; %s
		i=0; while [ $i -lt %d ]; do i=$((i+1)); echo '{"type":"request_permission","payload":{"id":"p'$i'"}}'; done
		while [ $i -gt 0 ]; do
			i=$((i-1)); read -r line; id=${line#*'"id":"'}; id=${id%%%%'"'*}; kind=${line#*'"kind":"'}; kind=${kind%%%%'"'*}
			echo '{"type":"permission_resolved","payload":{"id":"'$id'","kind":"'$kind'","reason":"answered"}}'
		done; %s`, started, n, completed)
}

func TestEachRequestHasItsOwnTime(t *testing.T) {
	ended := make(chan struct{})
	env := create(t, Config{
		Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(asksAndResolves(3))}, PermissionTimeout: 2 * time.Second,
		OnPermission: func(ctx context.Context, req PermissionRequest) PermissionDecision {
			switch req.ID {
			case "p1": // a late answer delays no timeout
				<-ended
			case "p2":
				return allow
			}
			return PermissionDecision{}
		},
	})
	var events []runnerscripts.Event
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
		if ev.Type == runnerscripts.TypeQueryCompleted {
			close(ended)
		}
	}
	got := resolutions(t, events)
	for id, want := range map[string]runnerscripts.PermissionResolved{
		"p1": {ID: "p1", Kind: runnerscripts.RejectOnce, Reason: runnerscripts.ReasonTimeout},
		"p2": {ID: "p2", Kind: runnerscripts.AllowOnce, Reason: runnerscripts.ReasonAnswered},
		"p3": {ID: "p3", Kind: runnerscripts.RejectOnce, Reason: runnerscripts.ReasonTimeout},
	} {
		if len(got[id]) != 1 || got[id][0] != want {
			t.Errorf("%s was resolved as %+v, want %+v", id, got[id], want)
		}
	}
}

func TestTheFirstAnswerCounts(t *testing.T) {
	env := withQuery(t, asksAndResolves(1))
	var won atomic.Int32
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type != runnerscripts.TypePermissionRequest {
			continue
		}
		var tasks sync.WaitGroup
		for range 10 {
			tasks.Go(func() {
				switch err := env.Respond(t.Context(), "p1", allow); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, ErrNotPending):
					t.Errorf("a later answer: %v, want ErrNotPending", err)
				}
			})
		}
		tasks.Wait()
	}
	if won.Load() != 1 {
		t.Errorf("%d answers counted", won.Load())
	}
}
