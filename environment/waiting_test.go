package environment

import (
	"bufio"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// info returns what List says of a sandbox, and fails if Remembered says anything else of its query.
func info(t *testing.T, box Sandbox, id string) SandboxInfo {
	t.Helper()
	list, err := List(t.Context(), box)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.ID != id {
			continue
		}
		if r, err := Remembered(box.Type, id); err != nil || r.QueryBy != s.QueryBy || r.QueryLost != s.QueryLost || len(r.Waiting) != len(s.Waiting) {
			t.Errorf("it is remembered as %+v, %v; want %+v", r, err, s)
		}
		return s
	}
	t.Fatalf("there is no sandbox %s", id)
	return SandboxInfo{}
}

func TestAListSaysWhichQueryWaitsForAnAnswer(t *testing.T) {
	box := sandbox(t)
	env := create(t, Config{Sandbox: box, Agent: scenario(t, asking()), OnPermission: AnswerLater})
	if _, err := env.Waiting(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a sandbox that is not kept says what waits: %v", err)
	}
	asked := 0
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "go"}) {
		if err != nil {
			t.Fatal(err)
		}
		s := info(t, box, env.ID())
		switch ev.Type {
		case runnerscripts.TypePermissionRequest:
			asked++
			req, err := runnerscripts.Payload[PermissionRequest](ev)
			if err != nil || len(s.Waiting) != 1 || s.Waiting[0].ID != req.ID || s.Waiting[0].Title != "true" || !s.Waiting[0].Since.Equal(ev.Time) {
				t.Errorf("at a request of %v the list says %+v, %v", ev.Time, s.Waiting, err)
			}
			if !s.QueryOwned || s.QueryLost || !strings.Contains(s.QueryBy, ":") {
				t.Errorf("of its program the list says %q, %v, %v", s.QueryBy, s.QueryOwned, s.QueryLost)
			}
			if err := env.Respond(t.Context(), req.ID, allow); err != nil {
				t.Error(err)
			}
		case runnerscripts.TypePermissionResolved:
			if len(s.Waiting) != 0 {
				t.Errorf("after the answer the list says %+v", s.Waiting)
			}
		}
	}
	if s := info(t, box, env.ID()); asked != 2 || s.QueryOwned || s.QueryLost || s.QueryEnded.IsZero() {
		t.Errorf("after %d requests and the end the list says %+v", asked, s)
	}
}

func TestAKeptSandboxSaysWhatWaitsAfterItsProgramDied(t *testing.T) {
	box := toKeep(sandbox(t))
	agent := scenario(t, asking())
	id := killedWhen(t, Config{Sandbox: box, Agent: agent, PermissionTimeout: -1}, promptAskLater, func(lines *bufio.Scanner) {
		for !strings.HasPrefix(lines.Text(), string(runnerscripts.TypePermissionRequest)) {
			if !lines.Scan() {
				t.Error("the host printed no request")
				return
			}
		}
	})
	if s := info(t, box, id); !s.QueryLost || s.QueryOwned || s.QueryBy == "" {
		t.Errorf("the list says %+v", s)
	}
	env := attach(t, id, box)
	waiting, err := env.Waiting(t.Context())
	if err != nil || len(waiting) != 1 || waiting[0].Title != "true" || waiting[0].Since.IsZero() || len(waiting[0].Request.Options) == 0 {
		t.Fatalf("%+v wait, %v", waiting, err)
	}
	env.queries.Permissions.On = AllowAll
	for _, err := range env.FollowQuery(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if waiting, err := env.Waiting(t.Context()); err != nil || len(waiting) != 0 {
		t.Errorf("after the end %+v wait, %v", waiting, err)
	}
	if _, err := Remembered(box.Type, "nosuch"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown sandbox: %v", err)
	}
}
