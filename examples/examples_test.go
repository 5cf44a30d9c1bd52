package examples_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
)

// TestReadmeShowsTheHelloProgram keeps the two the same.
func TestReadmeShowsTheHelloProgram(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(readme), "```go\n")
	code, _, ok := strings.Cut(code, "```\n")
	if !ok {
		t.Fatal("README.md has no Go program")
	}
	program, err := os.ReadFile("hello/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(program), "package main\n")
	if want := "package main\n" + body; code != want {
		t.Errorf("README.md shows another program than examples/hello:\n%s", code)
	}
}

// TestTheConfigurationsOfTheReadmeAreValid reads each; a key that does not exist is an
// error.
func TestTheConfigurationsOfTheReadmeAreValid(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "```yaml\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("README.md has no configuration")
	}
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```\n")
		if _, err := environment.ParseConfig([]byte(text)); err != nil {
			t.Errorf("%v in:\n%s", err, text)
		}
	}
}

// TestExamplesRun runs each as a user would, and looks at what it prints.
func TestExamplesRun(t *testing.T) {
	for name, want := range map[string][]string{
		"hello":      {"hello.txt is in the workspace"},
		"permission": {"Prompt 1:", "[allowed: ", "Prompt 2:"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "run", "./"+name)
			cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, w := range want {
				if !strings.Contains(string(out), w) {
					t.Errorf("it does not print %q:\n%s", w, out)
				}
			}
		})
	}
}
