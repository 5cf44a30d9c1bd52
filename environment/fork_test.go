package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// remembering returns an agent that answers with what it remembers.
func remembering(t *testing.T) Agent {
	return scenario(t, turn(runnerscripts.ScenarioStep{Text: "turn {{turn}} after: {{history}}"}))
}

// say sends a prompt and returns the answer.
func say(t *testing.T, env *Environment, prompt string) string {
	t.Helper()
	events, err := collect(t.Context(), env, Query{Prompt: prompt})
	if err != nil {
		t.Fatal(err)
	}
	return conversation(t, events)
}

// put writes a file of the workspace.
func put(t *testing.T, env *Environment, name, content string) {
	t.Helper()
	if err := env.Primitive().WriteFile(t.Context(), name, strings.NewReader(content), writeOptions); err != nil {
		t.Fatal(err)
	}
}

// forked returns copies that are closed at the end of the test.
func forked(t *testing.T, env *Environment, n int) []*Environment {
	t.Helper()
	copies, err := env.Fork(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	return copies
}

func changes(t *testing.T, env *Environment) string {
	t.Helper()
	list, err := env.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "%s %s,", c.Kind, c.Path)
	}
	return b.String()
}

func TestCopiesRememberAndGoSeparateWays(t *testing.T) {
	for name, box := range boxes(t) {
		t.Run(name, func(t *testing.T) {
			agent := remembering(t)
			agent.Env = map[string]string{"MINE": "yes"}
			env := create(t, Config{
				Sandbox: box, Agent: agent,
				Workspace: []Source{{Files: []File{{Path: "old", Content: "1\n"}}}},
			})
			say(t, env, "in common")
			put(t, env, "shared", "before")
			if !env.Primitive().Capabilities().Fork {
				if _, err := env.Fork(t.Context(), 1); name != "ssh" || !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("Fork: %v", err)
				}
				return
			}
			copies := forked(t, env, 2)
			ids := map[string]bool{env.SessionID(): true, copies[0].SessionID(): true, copies[1].SessionID(): true}
			if len(ids) != 3 {
				t.Errorf("the sessions are %v", ids)
			}
			// The original's agent continues; those of the copies are started.
			if got := say(t, env, "only here"); !strings.Contains(got, "turn 2 after: in common") {
				t.Errorf("the original said %q", got)
			}
			put(t, copies[0], "old", "2\n")
			put(t, copies[0], "shared", "after")
			for i, c := range copies {
				if got := say(t, c, fmt.Sprint("copy ", i)); !strings.Contains(got, "turn 2 after: in common") || strings.Contains(got, "only here") {
					t.Errorf("copy %d said %q", i, got)
				}
			}
			// The original may be closed first: each copy has its own baseline.
			if err := env.Close(); err != nil {
				t.Fatal(err)
			}
			if got := changes(t, copies[0]); got != "modified old,created shared," {
				t.Errorf("the first copy's changes: %s", got)
			}
			if got := changes(t, copies[1]); got != "created shared," {
				t.Errorf("the second copy's changes: %s", got)
			}
			var patch bytes.Buffer
			if err := copies[0].Patch(t.Context(), &patch); err != nil || !strings.Contains(patch.String(), "-1\n+2\n") {
				t.Errorf("the first copy's patch: %s, %v", patch.String(), err)
			}
			if got := say(t, copies[1], "and again"); !strings.Contains(got, "copy 1") || strings.Contains(got, "copy 0") {
				t.Errorf("the second copy said %q", got)
			}
		})
	}
}

func TestACopyBeforeTheFirstQueryStartsAfresh(t *testing.T) {
	env := create(t, Config{Agent: remembering(t)})
	c := forked(t, forked(t, env, 1)[0], 1)[0]
	if got := say(t, c, "hello"); !strings.Contains(got, "turn 1 after:") {
		t.Errorf("the agent said %q", got)
	}
}

func TestACopyOfACopyRemembersBeforeItsFirstQuery(t *testing.T) {
	env := create(t, Config{Agent: remembering(t)})
	say(t, env, "in common")
	c := forked(t, forked(t, env, 1)[0], 1)[0]
	if got := say(t, c, "hello"); !strings.Contains(got, "turn 2 after: in common") {
		t.Errorf("the agent said %q", got)
	}
}

func TestForkIsRefusedWhileAQueryRuns(t *testing.T) {
	env := withQuery(t, patient)
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "wait"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Text() == "" {
			continue
		}
		if _, err := env.Fork(t.Context(), 1); !errors.Is(err, ErrBusy) {
			t.Errorf("Fork: %v", err)
		}
		if _, err := env.Snapshot(t.Context()); !errors.Is(err, ErrBusy) {
			t.Errorf("Snapshot: %v", err)
		}
		break
	}
}

func TestForkSaysWhatIsWrong(t *testing.T) {
	env := create(t, Config{})
	if copies, err := env.Fork(t.Context(), 0); !errors.Is(err, fs.ErrInvalid) || copies != nil {
		t.Errorf("Fork of none: %v, %v", copies, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if copies, err := env.Fork(ctx, 1); !errors.Is(err, context.Canceled) || copies != nil {
		t.Errorf("Fork with a cancelled context: %v, %v", copies, err)
	}
	if _, err := env.Snapshot(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Snapshot of a local sandbox: %v", err)
	}
	if err := errors.Join(env.Pause(t.Context())); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Pause of a local sandbox: %v", err)
	}
	lacking := newOver(t, newBare(t), Config{})
	if _, err := lacking.Fork(t.Context(), 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Fork of what cannot be copied: %v", err)
	}
	_, ferr := lacking.Fork(t.Context(), 1)
	_, serr := env.Snapshot(t.Context())
	_, uerr := lacking.Usage(t.Context())
	for what, err := range map[string]error{
		"fork": ferr, "snapshot": serr, "usage": uerr, "pause": env.Pause(t.Context()), "resume": env.Resume(t.Context()),
	} {
		if !errors.Is(err, errors.ErrUnsupported) || strings.Count(err.Error(), what) != 1 {
			t.Errorf("%s is not named once: %v", what, err)
		}
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	_, ferr = env.Fork(t.Context(), 1)
	_, serr = env.Snapshot(t.Context())
	_, uerr = env.Usage(t.Context())
	for _, err := range []error{ferr, serr, uerr, env.Pause(t.Context()), env.Resume(t.Context())} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestCopiesOfAKeptSandboxAreKept(t *testing.T) {
	box := sandbox(t)
	env, err := Create(t.Context(), Config{Sandbox: toKeep(box), Agent: remembering(t), Workspace: []Source{{Files: []File{{Path: "old", Content: "1"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	say(t, env, "in common")
	copies, err := env.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	c := copies[0]
	put(t, c, "new", "1")
	say(t, c, "in the copy")
	if err := errors.Join(env.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := Attach(t.Context(), Config{Sandbox: box}, c.ID())
	if err != nil {
		t.Fatal(err)
	}
	if again.SessionID() != c.SessionID() {
		t.Errorf("session %s became %s", c.SessionID(), again.SessionID())
	}
	if got := changes(t, again); got != "created new," {
		t.Errorf("changes: %s", got)
	}
	if got := say(t, again, "more"); !strings.Contains(got, "in common") || !strings.Contains(got, "in the copy") {
		t.Errorf("the agent said %q", got)
	}
	if err := errors.Join(again.Close(), Remove(t.Context(), box, c.ID()), Remove(t.Context(), box, env.ID())); err != nil {
		t.Error(err)
	}
}

func TestAContainerIsKeptAndPaused(t *testing.T) {
	box := container(t)
	env := create(t, Config{Sandbox: box, Agent: remembering(t)})
	say(t, env, "before")
	put(t, env, "f", "kept")
	before, err := env.Usage(t.Context())
	if err != nil || before.Memory <= 0 || before.Processes <= 0 {
		t.Errorf("usage %+v, %v", before, err)
	}
	if err := env.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := env.WorkspaceFiles(t.Context(), FilesOptions{}); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("files of a paused sandbox: %v", err)
	}
	var failed bool
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "meanwhile"}) {
		if failed = failed || ev.Type == runnerscripts.TypeQueryFailed; err != nil && !errors.Is(err, primitives.ErrUnavailable) {
			t.Errorf("a query meanwhile: %v", err)
		}
	}
	if !failed {
		t.Error("a query meanwhile did not fail")
	}
	_, serr := env.PrepareSession(t.Context(), Setup{})
	_, ferr := env.Fork(t.Context(), 1)
	for _, err := range []error{serr, ferr} {
		if !errors.Is(err, primitives.ErrUnavailable) {
			t.Errorf("preparing or forking a paused one: %v", err)
		}
	}
	id, err := env.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (docker.Provider{}).RemoveSnapshot(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	if err := env.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := say(t, env, "after"); !strings.Contains(got, "turn 2 after: before") {
		t.Errorf("the agent said %q", got)
	}
	box.Image = id
	again := create(t, Config{Sandbox: box, Agent: remembering(t), SessionID: env.SessionID()})
	files, err := again.WorkspaceFiles(t.Context(), FilesOptions{MaxContent: 10})
	if err != nil || len(files) != 1 || string(files[0].Content) != "kept" {
		t.Errorf("files %+v, %v", files, err)
	}
	if got := say(t, again, "again"); !strings.Contains(got, "turn 2 after: before") {
		t.Errorf("the agent of the snapshot said %q", got)
	}
}

// statusOf returns the status of a sandbox in List.
func statusOf(t *testing.T, box Sandbox, id string) primitives.Status {
	t.Helper()
	list, err := List(t.Context(), box)
	i := slices.IndexFunc(list, func(i SandboxInfo) bool { return i.ID == id })
	if err != nil || i < 0 {
		t.Fatalf("listed %+v, %v", list, err)
	}
	return list[i].Status
}

// TestASandboxResumedByAnotherProgram checks that such a sandbox does not count as paused, and
// is not paused again.
func TestASandboxResumedByAnotherProgram(t *testing.T) {
	box := container(t)
	env := create(t, Config{Sandbox: toKeep(box), Agent: remembering(t)})
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), box, env.ID()); err != nil {
			t.Error(err)
		}
	})
	say(t, env, "before")
	if err := errors.Join(env.Pause(t.Context()), primitives.Resume(t.Context(), env.Primitive())); err != nil {
		t.Fatal(err)
	}
	say(t, env, "after")
	if err := env.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := docker.Provider{}.Attach(t.Context(), env.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(env.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	if got := statusOf(t, box, env.ID()); got != primitives.StatusRunning {
		t.Errorf("the other one's sandbox is %s", got)
	}
}

// TestAPausedSandboxIsClosed checks that Close does not wait for frozen processes, and that a
// sandbox that is kept stays paused.
func TestAPausedSandboxIsClosed(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep %v", keep), func(t *testing.T) {
			t.Parallel()
			box := container(t)
			box.Keep = keep
			env := create(t, Config{Sandbox: box, Agent: remembering(t)})
			say(t, env, "before")
			agent := env.queries.Agent()
			if err := env.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := env.Close(); err != nil {
				t.Error(err)
			}
			if ended := agent.Failure(nil, nil); ended.Status.Reason != primitives.ReasonExited || ended.Status.Code != 0 {
				t.Errorf("the agent's runner did not heed its end: %+v, %v", ended.Status, ended)
			}
			if !keep {
				return
			}
			if got := statusOf(t, box, env.ID()); got != primitives.StatusPaused {
				t.Errorf("it is %s", got)
			}
			if err := Remove(t.Context(), box, env.ID()); err != nil {
				t.Error(err)
			}
		})
	}
}
