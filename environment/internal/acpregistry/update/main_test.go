package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// npm is a program in place of npm, which knows three packages.
const npm = `#!/bin/sh
[ "$1 $2 $3 $5" = "view --json -- bin" ] || exit 2
case $4 in
@x/one@1.0.0) echo '{"uno": "cli.js"}' ;;
many) echo '{"other": "a.js", "many": "b.js"}' ;;
unclear@1.0.0) echo '{"a": "a.js", "b": "b.js"}' ;;
*) echo '{"error": {"code": "E404"}}'; exit 1 ;;
esac
`

const want = `{
  "commit": "COMMIT",
  "date": "2026-02-07",
  "agents": [
    {
      "id": "archived",
      "version": "1.0.0",
      "program": "run-it",
      "args": [
        "acp"
      ],
      "archives": {
        "linux-aarch64": "https://example.com/b.zip",
        "linux-x86_64": "https://example.com/a.zip"
      }
    },
    {
      "id": "many",
      "version": "2.0.0",
      "program": "many",
      "npm": "many@2.0.0"
    },
    {
      "id": "one",
      "version": "1.0.0",
      "program": "uno",
      "args": [
        "--acp"
      ],
      "env": {
        "NO_UPDATE": "1"
      },
      "npm": "@x/one@1.0.0"
    },
    {
      "id": "python",
      "version": "1.0.0",
      "program": "python-agent",
      "uvx": "python-agent==1.0.0"
    }
  ]
}
`

func TestTheCatalogIsWrittenFromACheckout(t *testing.T) {
	bin, checkout := t.TempDir(), t.TempDir()
	write(t, filepath.Join(bin, "npm"), npm, 0o755)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for name, text := range map[string]string{
		"README.md":                     "no agent",
		"one/agent.json":                `{"id":"one","name":"One","version":"1.0.0","distribution":{"npx":{"package":"@x/one@1.0.0","args":["--acp"],"env":{"NO_UPDATE":"1"}},"binary":{}}}`,
		"many/agent.json":               `{"id":"many","version":"2.0.0","distribution":{"npx":{"package":"many@2.0.0"}}}`,
		"python/agent.json":             `{"id":"python","version":"1.0.0","distribution":{"uvx":{"package":"python-agent==1.0.0"}}}`,
		"_not_yet_unsupported/a.md":     "",
		"unclear/agent.json":            `{"id":"unclear","version":"1.0.0","distribution":{"npx":{"package":"unclear@1.0.0"}}}`,
		"unknown/agent.json":            `{"id":"unknown","version":"1.0.0","distribution":{"npx":{"package":"unknown@1.0.0"}}}`,
		"windows/agent.json":            `{"id":"windows","version":"1.0.0","distribution":{"binary":{"windows-x86_64":{"archive":"https://example.com/w.zip","cmd":"./w.exe"}}}}`,
		"uneven/agent.json":             `{"id":"uneven","version":"1.0.0","distribution":{"binary":{"linux-x86_64":{"archive":"https://example.com/u.zip","cmd":"./u","args":["a"]},"linux-aarch64":{"archive":"https://example.com/u.zip","cmd":"./u"}}}}`,
		"_not_yet_unsupported/agent.js": "",
		"hostile/agent.json":            `{"id":"hostile","version":"1; reboot","distribution":{"npx":{"package":"@x/one@1.0.0"}}}`,
		"unreadable/agent.json":         `{`,
		"_not_yet_unsupported/archived/agent.json": `{"id":"archived","version":"1.0.0","distribution":{"binary":{
			"linux-x86_64":{"archive":"https://example.com/a.zip","cmd":"./dist/run-it","args":["acp"]},
			"linux-aarch64":{"archive":"https://example.com/b.zip","cmd":"./run-it","args":["acp"]},
			"windows-x86_64":{"archive":"https://example.com/c.zip","cmd":"./run-it.exe","args":["--acp"]}}}}`,
	} {
		write(t, filepath.Join(checkout, name), text, 0o644)
	}
	commit := commitAll(t, checkout)
	write(t, filepath.Join(checkout, "later/agent.json"), "not committed", 0o644)

	file := filepath.Join(t.TempDir(), "agents.json")
	var warned bytes.Buffer
	if err := update(t.Context(), checkout, file, &warned); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil || string(bytes.Replace(got, []byte(commit), []byte("COMMIT"), 1)) != want {
		t.Errorf("%v\n%s", err, got)
	}
	if n := bytes.Count(warned.Bytes(), []byte("left out")); n != 6 {
		t.Errorf("left out %d:\n%s", n, &warned)
	}
}

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// commitAll commits the files of a folder and returns the commit.
func commitAll(t *testing.T, dir string) string {
	t.Helper()
	var out []byte
	for _, args := range [][]string{
		{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message", "x"}, {"rev-parse", "HEAD"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-02-07T12:00:00Z", "GIT_CONFIG_GLOBAL=/dev/null")
		var err error
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	return string(bytes.TrimSpace(out))
}
