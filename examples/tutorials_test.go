package examples_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// TestTheTutorialsWork runs each tutorial as its reader does: the blocks of commands in order, in an
// empty folder of a user who has used nothing before. A block of text after commands is what they
// print; "..." stands for any lines.
func TestTheTutorialsWork(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/tutorials/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("there are no tutorials: %v", err)
	}
	for _, page := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			follow(t, string(text))
		})
	}
}

// fence matches a block of a page.
var fence = regexp.MustCompile("(?ms)^```(\\S+)\n(.*?)^```$")

// follow runs the commands of a tutorial and compares what they print.
func follow(t *testing.T, text string) {
	t.Helper()
	const mark = "--- end of a block ---\n"
	var script strings.Builder
	wants := map[int]string{} // by the number of the commands
	n := 0
	for _, b := range fence.FindAllStringSubmatch(text, -1) {
		switch b[1] {
		case "sh":
			n++
			script.WriteString(b[2] + "echo '" + strings.TrimSuffix(mark, "\n") + "'\n")
		case "text":
			if wants[n] != "" || n == 0 {
				t.Fatalf("a block of text does not follow commands:\n%s", b[2])
			}
			wants[n] = b[2]
		}
	}
	if n == 0 || len(wants) == 0 {
		t.Fatalf("%d blocks of commands, %d of what they print", n, len(wants))
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", script.String())
	cmd.Dir = t.TempDir()
	cmd.Env = newcomer(t)
	t.Cleanup(func() { nothingLeft(t, cmd.Env) })
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &stdout, &stderr)
	}
	printed := strings.Split(stdout.String(), mark)
	for i, want := range wants {
		if got := printed[i-1]; !prints(want).MatchString(got) {
			t.Errorf("commands %d print\n%s\nwant\n%s", i, got, want)
		}
	}
}

// nothingLeft ends the local sandboxes of a user, and fails if there are any.
func nothingLeft(t *testing.T, env []string) {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", `envctl=$1
for id in $("$envctl" ls --sandbox local --json | sed 's/^{"id":"\([^"]*\)".*/\1/'); do echo "$id"; "$envctl" rm "$id"; done`, "sh", filepath.Join(bin, "envctl"))
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("sandboxes are left: %v\n%s", err, out)
	}
}

// prints returns an expression for a text in which a line "..." stands for any lines.
func prints(want string) *regexp.Regexp {
	var b strings.Builder
	for line := range strings.Lines(want) {
		if line == "...\n" {
			b.WriteString("(?s:.*)")
		} else {
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), `\n`, "\n"))
		}
	}
	return regexp.MustCompile("^" + b.String() + "$")
}

// newcomer returns the environment of a user who has envctl and git, and no settings but a name.
func newcomer(t *testing.T) []string {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	name := "[user]\n\tname = Ada\n\temail = ada@example.com\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(name), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), bundle.ExplicitVariable + "=" + runner(t)}
}
