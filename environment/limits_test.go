package environment

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// No program writes to the pipe: a reader would wait forever.
func TestAPipeInTheFilesOfAConfigurationIsRefused(t *testing.T) {
	pipe := func(dir, name string) string {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if _, err := LoadConfig(pipe(t.TempDir(), "config.yaml")); !errors.Is(err, primitives.ErrNotRegular) {
		t.Errorf("a configuration: %v", err)
	}
	if _, err := LoadProfile(pipe(t.TempDir(), "profile.yaml")); !errors.Is(err, primitives.ErrNotRegular) {
		t.Errorf("a profile: %v", err)
	}
	for _, name := range []string{
		"AGENTS.md", "CLAUDE.md", ".claude/CLAUDE.md", "profile.yaml", "rules/a.md", "commands/a.md", "agents/a.md",
		"settings.json", ".mcp.json", "skills/a/SKILL.md", "skills/a/file",
	} {
		dir := folderWith(t, tree{"rules/b.md": "b", "skills/a/b": "b"})
		if name != "skills/a/SKILL.md" {
			tree{"skills/a/SKILL.md": "---\nname: a\ndescription: d\n---\n"}.write(t, dir)
		}
		pipe(dir, name)
		if _, err := LoadProfile(dir); !errors.Is(err, ErrConfig) || !errors.Is(err, primitives.ErrNotRegular) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want ErrConfig and primitives.ErrNotRegular", name, err)
		}
	}
}

func TestTheContentsOfAWorkspaceAreBounded(t *testing.T) {
	env := create(t, Config{})
	for _, name := range []string{"a", "b"} {
		put(t, env, name, "12345")
	}
	for most, want := range map[int64]error{5: primitives.ErrLimit, 1 << 20: nil} {
		env.most = most
		files, err := env.WorkspaceFiles(t.Context(), FilesOptions{MaxContent: 5})
		if !errors.Is(err, want) || (files != nil) != (want == nil) {
			t.Errorf("of at most %d bytes: %v, %v", most, files, err)
		}
	}
}
