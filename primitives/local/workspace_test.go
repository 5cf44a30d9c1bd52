package local_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// The next sandbox of a conversation has its workspace where the last one had it.
func TestTheNextSandboxHasTheWorkspaceAtTheSamePath(t *testing.T) {
	root := t.TempDir()
	create := func(at string) (primitives.EnvironmentPrimitive, error) {
		return local.Provider{Root: root}.Create(t.Context(), primitives.Spec{Session: "talk", WorkspacePath: at})
	}
	first, err := create("")
	if err != nil {
		t.Fatal(err)
	}
	at := first.Paths().Workspace
	write(t, first, "old", "x")
	if _, err := create(at); !errors.Is(err, fs.ErrExist) {
		t.Errorf("at the path of a live sandbox: %v", err)
	}
	if _, err := os.Stat(filepath.Join(at, "old")); err != nil {
		t.Errorf("the sandbox that lives lost its files: %v", err)
	}
	endSandbox(t, first)
	if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the workspace is left: %v", err)
	}
	next, err := create(at)
	if err != nil {
		t.Fatal(err)
	}
	if next.ID() == first.ID() || next.Paths().Workspace != at {
		t.Errorf("the next sandbox %s works in %s, the first one %s in %s", next.ID(), next.Paths().Workspace, first.ID(), at)
	}
	if files, err := next.List(t.Context(), ".", primitives.ListOptions{}); err != nil || len(files) > 0 {
		t.Errorf("it begins with %v, %v", files, err)
	}
	endSandbox(t, next)
}

func endSandbox(t *testing.T, s primitives.EnvironmentPrimitive) {
	t.Helper()
	if _, err := s.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Terminate removes a new workspace, so it must not be a folder of the user.
func TestANewWorkspaceIsBelowTheRoot(t *testing.T) {
	root, mine := t.TempDir(), t.TempDir()
	for _, at := range []string{mine, filepath.Join(mine, "new"), "/workspace", filepath.Join(root, "workspaces", "a", "b"), "relative"} {
		_, err := local.Provider{Root: root}.Create(t.Context(), primitives.Spec{WorkspacePath: at})
		wrong, ok := errors.AsType[*primitives.SettingError](err)
		if !ok || wrong.Setting != "workspace_path" {
			t.Errorf("%s: %v", at, err)
		}
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A command of the sandbox can change the state, which a later program believes.
func TestOnlyAWorkspaceOfTheRootIsRemoved(t *testing.T) {
	root, mine := t.TempDir(), t.TempDir()
	s, err := local.New(t.Context(), local.Config{Root: root, Session: "talk", Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.Paths().App, "sandbox.json")
	state, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(state), `"workspace":"`+s.Paths().Workspace+`"`, `"workspace":"`+mine+`"`, 1)
	if changed == string(state) {
		t.Fatalf("the state names no workspace: %s", state)
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := (local.Provider{Root: root}).Remove(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("the folder of the user: %v", err)
	}
}

// The folder of the container's image is used as it is.
func TestAGuestUsesTheFolderOfTheImage(t *testing.T) {
	at := filepath.Join(t.TempDir(), "deep", "workspace")
	cfg := local.Config{Root: t.TempDir(), WorkspacePath: at, LeaveFiles: true}
	s, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, "f", "of the image")
	endSandbox(t, s)
	adopted, err := local.Adopt(t.Context(), local.Config{Root: cfg.Root, LeaveFiles: true}, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := adopted.Paths().Workspace; got != at {
		t.Errorf("the adopted folder works in %s", got)
	}
	endSandbox(t, adopted)
	again, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := primitives.ReadFile(t.Context(), again, "f", 100); string(b) != "of the image" {
		t.Errorf("%q, %v", b, err)
	}
	endSandbox(t, again)
	if err := os.WriteFile(at+"/../file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.WorkspacePath = filepath.Dir(at) + "/file"
	if _, err := local.New(t.Context(), cfg); !errors.Is(err, primitives.ErrNotDirectory) {
		t.Errorf("a file as the workspace: %v", err)
	}
}
