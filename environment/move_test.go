package environment

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// move moves an environment to another one that is closed at the end of the test.
func move(t *testing.T, env *Environment, to Sandbox) *Environment {
	t.Helper()
	moved, err := env.Move(t.Context(), Config{Sandbox: to, Trust: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := moved.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return moved
}

func TestASessionMovesThroughSandboxesOfEveryType(t *testing.T) {
	to := boxes(t)
	first := create(t, Config{Sandbox: to["local"], Agent: remembering(t), Workspace: []Source{{Files: []File{{Path: "old", Content: "a\n"}}}}})
	if got := say(t, first, "one"); !strings.Contains(got, "turn 1") {
		t.Fatalf("it said %q", got)
	}
	put(t, first, "new", "b\n")
	env := first
	for i, typ := range []string{"docker", "modal", "local"} {
		before := env
		env = move(t, env, to[typ])
		if env.SessionID() != first.SessionID() || env.ID() == before.ID() {
			t.Errorf("%s: session %s in %s, before %s in %s", typ, env.SessionID(), env.ID(), first.SessionID(), before.ID())
		}
		if err := before.Healthy(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: the one before: %v", typ, err)
		}
		if _, err := Attach(t.Context(), Config{Sandbox: before.cfg.Sandbox}, before.ID()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the sandbox before: %v", typ, err)
		}
		prompt := []string{"two", "three", "four"}[i]
		if got := say(t, env, prompt); !strings.Contains(got, "after: "+strings.Join([]string{"one", "two", "three"}[:i+1], "\n")) {
			t.Errorf("%s: it remembers %q", typ, got)
		}
		if got := changes(t, env); got != "created new," {
			t.Errorf("%s: changes are %q", typ, got)
		}
	}
}

func TestAMoveThatFailsLeavesEverythingAsItWas(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: remembering(t)})
	say(t, env, "one")
	missing := sandbox(t)
	missing.Workspace = "/nonexistent/folder"
	for name, to := range map[string]Config{
		"no sandbox":       {},
		"one that fails":   {Sandbox: missing},
		"another agent":    {Sandbox: sandbox(t), Agent: Agent{Name: "claude"}},
		"another session":  {Sandbox: sandbox(t), SessionID: "other"},
		"with a workspace": {Sandbox: sandbox(t), Workspace: []Source{{Files: []File{{Path: "x"}}}}},
	} {
		if moved, err := env.Move(t.Context(), to); err == nil || moved != nil {
			t.Errorf("%s: %v, %v", name, moved, err)
		}
	}
	if got := say(t, env, "two"); !strings.Contains(got, "after: one") {
		t.Errorf("it said %q", got)
	}
}

func TestASandboxThatIsKeptMovesWithItsRecord(t *testing.T) {
	t.Parallel()
	from, to := sandbox(t), sandbox(t)
	env := create(t, Config{Sandbox: toKeep(from), Agent: remembering(t)})
	say(t, env, "one")
	put(t, env, "new", "b\n")
	moved, err := env.Move(t.Context(), Config{Sandbox: toKeep(to)})
	if err != nil {
		t.Fatal(err)
	}
	if err := moved.Close(); err != nil {
		t.Error(err)
	}
	// A program that only moves the sandbox need not have used the agent.
	second, err := attach(t, moved.ID(), to).Move(t.Context(), Config{Sandbox: toKeep(to)})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	again := attach(t, second.ID(), to)
	if got := changes(t, again); got != "created new," {
		t.Errorf("changes are %q", got)
	}
	if got := say(t, again, "two"); !strings.Contains(got, "after: one") {
		t.Errorf("it said %q", got)
	}
	// A program that has attached to the sandbox can move it too.
	last, err := again.Move(t.Context(), Config{Sandbox: from})
	if err != nil {
		t.Fatal(err)
	}
	if got := changes(t, last); got != "created new," {
		t.Errorf("changes are %q", got)
	}
	if data, err := primitives.ReadFile(t.Context(), last.Primitive(), "new", 100); err != nil || string(data) != "b\n" {
		t.Errorf("%q, %v", data, err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
}

// lstat returns type and permission of a file, and the target of a link.
func lstat(t *testing.T, name string) string {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Error(err)
		return ""
	}
	if target, err := os.Readlink(name); err == nil {
		return "-> " + target
	}
	return info.Mode().String()
}

func TestTheWholeWorkspaceMoves(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: remembering(t)})
	ws := env.Primitive().Paths().Workspace
	tree{"dir/run": "#!/bin/sh\n", ".git/config": "[core]\n", "secret": "s"}.write(t, ws)
	if err := errors.Join(
		os.Chmod(filepath.Join(ws, "dir/run"), 0o755), os.Chmod(filepath.Join(ws, "secret"), 0o600),
		os.MkdirAll(filepath.Join(ws, "empty/folder"), 0o750), os.Chmod(filepath.Join(ws, "empty/folder"), 0o750),
		os.Symlink("../secret", filepath.Join(ws, "dir/link")), os.Symlink("nowhere", filepath.Join(ws, "dangling")),
		os.Symlink(filepath.Join(ws, "dir", "run"), filepath.Join(ws, "empty/absolute")),
		os.Symlink(ws, filepath.Join(ws, "itself")), os.Symlink("/usr/bin/env", filepath.Join(ws, "out")),
	); err != nil {
		t.Fatal(err)
	}
	moved := move(t, env, sandbox(t))
	if at := moved.Primitive().Paths().Workspace; at == ws {
		t.Errorf("both sandboxes of the machine have the path %s", at)
	} else {
		ws = at
	}
	for name, want := range map[string]string{
		"dir/run": "-rwxr-xr-x", "secret": "-rw-------", "empty/folder": "drwxr-x---", ".git/config": "-rw-r--r--",
		"dir/link": "-> ../secret", "dangling": "-> nowhere", "empty/absolute": "-> " + ws + "/dir/run", "itself": "-> " + ws, "out": "-> /usr/bin/env",
	} {
		if got := lstat(t, filepath.Join(ws, name)); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// A container and a sandbox at Modal can have any path, so that the path stays, and there and back.
func TestTheWorkspaceKeepsItsPathWhereItCan(t *testing.T) {
	to := boxes(t)
	env := create(t, Config{Sandbox: to["local"]})
	ws := env.Primitive().Paths().Workspace
	if err := errors.Join(os.Symlink(ws+"/tool", filepath.Join(ws, "link")), os.WriteFile(filepath.Join(ws, "tool"), []byte("#!"+ws+"/sh\necho works\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"docker", "modal", "local", "ssh"} {
		env = move(t, env, to[typ])
		at := env.Primitive().Paths().Workspace
		if stays := typ != "ssh"; (at == ws) != stays {
			t.Errorf("%s: the workspace is at %s, was at %s", typ, at, ws)
		}
		res, err := primitives.Run(t.Context(), env.Primitive(), primitives.Command{Args: []string{"sh", "-c", "readlink link; cat link; rm -f sh; ln -s /bin/sh sh; ./tool"}}, primitives.RunOptions{})
		want := at + "/tool\n#!" + ws + "/sh\necho works\n"
		if typ != "ssh" {
			want += "works\n"
		}
		if err != nil || string(res.Stdout) != want {
			t.Errorf("%s: %q, %v: %s, want %q", typ, res.Stdout, err, res.Stderr, want)
		}
	}
	// The folder of the machine is free again, and in a container there is no other.
	if _, err := os.Lstat(ws); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the workspace of the local sandbox: %v", err)
	}
}

func TestASandboxInWhichAQueryOfAnotherProgramRunsDoesNotMove(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	id := killedHost(t, Config{Sandbox: toKeep(box), Agent: scenario(t, waiting("go-on"))}, "before")
	env := attach(t, id, box)
	if moved, err := env.Move(t.Context(), Config{Sandbox: sandbox(t)}); !errors.Is(err, ErrBusy) || moved != nil {
		t.Fatalf("%v, %v", moved, err)
	}
	put(t, env, "go-on", "")
	if _, err := followed(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	if err := move(t, env, sandbox(t)).Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAnEndedQueryThatNoProgramFollowedDoesNotPreventAMove(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	id := killedHost(t, Config{Sandbox: toKeep(box), Agent: scenario(t, waiting("go-on"))}, "before")
	env := attach(t, id, box)
	put(t, env, "go-on", "")
	for { // until its runner has ended
		moved, err := env.Move(t.Context(), Config{Sandbox: sandbox(t)})
		if errors.Is(err, ErrBusy) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := moved.Close(); err != nil {
			t.Error(err)
		}
		return
	}
}

func TestAMovedSandboxThatIsKeptRemembersTheBeginning(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	env := create(t, Config{Agent: remembering(t), Workspace: []Source{{Files: []File{{Path: "gone", Content: "a\n"}, {Path: "old", Content: "b\n"}}}}})
	put(t, env, "new", "c\n")
	if err := env.Primitive().Remove(t.Context(), "gone", false); err != nil {
		t.Fatal(err)
	}
	moved, err := env.Move(t.Context(), Config{Sandbox: toKeep(box)})
	if err != nil {
		t.Fatal(err)
	}
	if err := moved.Close(); err != nil {
		t.Error(err)
	}
	again := attach(t, moved.ID(), box)
	defer func() {
		if err := Remove(t.Context(), box, moved.ID()); err != nil {
			t.Error(err)
		}
	}()
	if got := changes(t, again); got != "deleted gone,created new," {
		t.Errorf("changes are %q", got)
	}
}

func TestTheFolderOfTheUserIsNotMovedOntoItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree{"a": "1\n", "b/c": "2\n"}.write(t, dir)
	from, to := sandbox(t), sandbox(t)
	from.Workspace, to.Workspace = dir, dir
	env := create(t, Config{Sandbox: from, Agent: remembering(t)})
	say(t, env, "one")
	moved := move(t, env, to)
	if got := say(t, moved, "two"); !strings.Contains(got, "after: one") {
		t.Errorf("it said %q", got)
	}
	for name, want := range map[string]string{"a": "1\n", "b/c": "2\n"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}

func TestOnlyTheEnvironmentOfAnUnnamedAgentCountsForAMove(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: remembering(t)})
	to := Config{Sandbox: sandbox(t), Agent: Agent{Model: "m"}}
	if _, err := env.Move(t.Context(), to); !errors.Is(err, ErrConfig) {
		t.Errorf("%v", err)
	}
	to.Agent = Agent{Env: map[string]string{"KEY": "value"}}
	moved, err := env.Move(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	if got := moved.queries.Request().Agent; got.Name != "script" || got.Env["KEY"] != "value" {
		t.Errorf("%+v", got)
	}
	if err := moved.Close(); err != nil {
		t.Error(err)
	}
}

func TestAnAgentThatWouldNotRememberIsNotMoved(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: Agent{Name: "acp", Command: []string{"sh"}}})
	said := runnerscripts.Transcript{Main: `{"type":"user_message","payload":{}}` + "\n"}
	if _, err := env.PrepareSession(t.Context(), Setup{Transcript: &said}); err != nil {
		t.Fatal(err)
	}
	moved, err := env.Move(t.Context(), Config{Sandbox: sandbox(t)})
	if !errors.Is(err, errors.ErrUnsupported) || moved != nil || !strings.Contains(err.Error(), `"acp"`) {
		t.Errorf("%v, %v", moved, err)
	}
	if err := env.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := move(t, create(t, Config{Agent: env.cfg.Agent}), sandbox(t)).Healthy(t.Context()); err != nil {
		t.Errorf("without a conversation: %v", err)
	}
}
