package agent_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func session(t *testing.T) rs.Session {
	t.Helper()
	s := rs.Session{Agent: rs.Agent{Name: "some"}}
	s.Paths.Home, s.Paths.Workspace = t.TempDir(), t.TempDir()
	return s
}

func TestAKeyOfFrontmatterThatAProgramDoesNotKnowIsRefusedByName(t *testing.T) {
	front := map[string]any{"b": 1, "a": 2, "color": 3}
	for says, known := range map[string][]string{
		"profile.commands[0].frontmatter.a: Some has nothing for it (it has: b, color)":        {"b", "color"},
		"profile.commands[0].frontmatter.a: Some has nothing for it (it has: nothing of the k": nil,
	} {
		err := agent.CheckFrontmatter("Some", "profile.commands[0]", front, known...)
		failure, ok := errors.AsType[*rs.ScriptFailure](err)
		if !ok || failure.Code != rs.FailUnsupported || !strings.Contains(failure.Message, says) {
			t.Errorf("%v", err)
		}
	}
	if err := agent.CheckFrontmatter("Some", "x", front, "a", "b", "color"); err != nil {
		t.Error(err)
	}
}

func TestAProfileReplacesTheFilesOfTheLastOne(t *testing.T) {
	s := session(t)
	write := func(files ...rs.WorkspaceFile) {
		t.Helper()
		if err := agent.WriteProfile(s, files); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(s.Paths.Home, ".x", "own")
	write(rs.WorkspaceFile{Path: ".x/a", Text: "1"}, rs.WorkspaceFile{Path: ".x/b", Content: []byte("2"), Mode: 0o755})
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write(rs.WorkspaceFile{Path: ".x/b", Text: "3"})
	if _, err := os.Stat(filepath.Join(s.Paths.Home, ".x/a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of the first profile: %v", err)
	}
	if _, err := os.Stat(own); err != nil {
		t.Errorf("the agent's own file: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(s.Paths.Home, ".x/b"))
	if info, serr := os.Stat(filepath.Join(s.Paths.Home, ".x/b")); err != nil || serr != nil || string(data) != "3" || info.Mode() != 0o644 {
		t.Errorf("%q, %v, %v %v", data, info.Mode(), err, serr)
	}
}

func TestPartsOfAProfileThatWouldBeOneFileAreRefused(t *testing.T) {
	for _, second := range []string{".x/a", ".x/a/b"} {
		s := session(t)
		err := agent.WriteProfile(s, []rs.WorkspaceFile{{Path: ".x/a", Text: "1"}, {Path: second, Text: "2"}})
		failure, ok := errors.AsType[*rs.ScriptFailure](err)
		if !ok || failure.Code != rs.FailInvalidRequest || !strings.Contains(failure.Message, `".x/a"`) {
			t.Errorf("%s: %v", second, err)
		}
		if entries, err := os.ReadDir(s.Paths.Home); err != nil || len(entries) > 0 {
			t.Errorf("%s: written: %v, %v", second, entries, err)
		}
	}
}

func TestAProfileIsNotWrittenThroughLinksThatLeadOut(t *testing.T) {
	s := session(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(s.Paths.Home, ".x")); err != nil {
		t.Fatal(err)
	}
	if err := agent.WriteProfile(s, []rs.WorkspaceFile{{Path: ".x/a", Text: "1"}}); err == nil {
		t.Error("no error")
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestASkillIsAFolderWithItsTextAndFiles(t *testing.T) {
	files := agent.SkillFiles("skills", []rs.Skill{{
		Name: "s", Description: `say: "x" # <b>`, Content: "Body\n", Frontmatter: map[string]any{"allowed-tools": "Read"},
		Files: []rs.WorkspaceFile{{Path: "bin/run", Text: "#!", Mode: 0o755}},
	}})
	want := "---\nallowed-tools: \"Read\"\ndescription: \"say: \\\"x\\\" # <b>\"\nname: \"s\"\n---\n\nBody\n"
	if len(files) != 2 || files[0].Path != "skills/s/SKILL.md" || files[0].Text != want || files[1].Path != "skills/s/bin/run" {
		t.Errorf("%+v", files)
	}
}

func TestAServerIsInstalledOnceForEachContent(t *testing.T) {
	s := session(t)
	log := filepath.Join(t.TempDir(), "log")
	install := func(text, command string) error {
		return agent.InstallServers(t.Context(), s, rs.Profile{MCPServers: []rs.MCPServer{{
			Name: "srv", Command: []string{"./run"}, Files: []rs.WorkspaceFile{{Path: "run", Text: text, Mode: 0o755}}, Install: command,
		}}}, []string{"LOG=" + log, "PATH=" + os.Getenv("PATH")})
	}
	for _, text := range []string{"1", "1", "2"} {
		if err := install(text, `cat run >> "$LOG"`); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(log); err != nil || string(data) != "12" {
		t.Errorf("%q, %v", data, err)
	}
	err := install("3", "echo no compiler >&2; exit 3")
	failure, ok := errors.AsType[*rs.ScriptFailure](err)
	if !ok || failure.Code != rs.FailInvalidRequest || !strings.Contains(failure.Message, `"srv"`) || !strings.Contains(failure.Message, "exit status 3: no compiler") {
		t.Errorf("%v", err)
	}
	if err := install("3", `cat run >> "$LOG"`); err != nil {
		t.Errorf("after a failure: %v", err)
	}
	servers := agent.Servers(s, rs.Profile{MCPServers: []rs.MCPServer{{Name: "srv", Command: []string{"./run", "a b"}, Install: "true"}, {Name: "other", Command: []string{"x"}}}})
	if dir := servers[0].Command[3]; filepath.Base(dir) != "srv" || servers[0].Command[4] != "./run" || servers[0].Command[5] != "a b" || len(servers[1].Command) != 1 {
		t.Errorf("%q", servers)
	}
}
