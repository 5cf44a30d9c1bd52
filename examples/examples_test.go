package examples_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	_ "github.com/agentenv-dev/agentenv/primitives/modal" // docs name every type
	_ "github.com/agentenv-dev/agentenv/primitives/remote"
	_ "github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// TestReadmeShowsTheHelloProgram checks that README.md and the hello example are the same.
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

// pages returns the pages of the documentation.
func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	tutorials, err := filepath.Glob("../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append(docs, tutorials...)
}

// TestTheDocsCanBeReviewedAsADiff checks the width of lines. The rows of tables may be longer.
func TestTheDocsCanBeReviewedAsADiff(t *testing.T) {
	for _, name := range append(pages(t), "../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			if utf8.RuneCountInString(line) > 121 && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d: wrap it at 120 columns", name, n)
			}
		}
	}
}

// TestTheConfigurationsOfTheDocsAreValid parses each configuration; an unknown key is an error.
func TestTheConfigurationsOfTheDocsAreValid(t *testing.T) {
	docs := pages(t)
	count := 0
	for _, name := range append(docs, "../README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			config, _, _ := strings.Cut(block, "```\n")
			if _, err := environment.ParseConfig([]byte(config)); err != nil {
				t.Errorf("%s: %v in:\n%s", name, err, config)
			}
			count++
		}
	}
	if count < 5 {
		t.Errorf("there are %d configurations", count)
	}
}

// TestTheLinksOfTheDocsLeadSomewhere checks that links to files of the repository exist.
func TestTheLinksOfTheDocsLeadSomewhere(t *testing.T) {
	docs := pages(t)
	link := regexp.MustCompile(`\]\(([^):#]+)[^)]*\)`)
	for _, name := range append(docs, "../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(found[0], "](http") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), found[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// programs builds the examples and envctl.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "examples-*")
	if err != nil {
		return "", err
	}
	return dir, build("-o", dir+"/", "./...", "../cmd/envctl")
})

// build runs go build. All programs here are built with the same flags, so that they share packages.
func build(args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return err
}

func TestMain(m *testing.M) {
	status := testdocker.Main(m)
	if dir, err := programs(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(status)
}

func runner(t *testing.T) string {
	t.Helper()
	file, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// example returns the command that runs an example, with a temporary folder of the test.
func example(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name), args...)
	// A program that was built with -trimpath does not know where the source of the runner is.
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "ADDR=127.0.0.1:0", bundle.ExplicitVariable+"="+runner(t))
	cmd.Stderr = os.Stderr
	return cmd
}

// output returns what a command prints.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestHelloPrintsWhatCameOfThePrompt(t *testing.T) {
	out := output(t, example(t, "hello"))
	if !strings.Contains(out, "hello.txt is in the workspace") || !strings.HasSuffix(out, "created hello.txt\n") {
		t.Errorf("it prints %q", out)
	}
}

func TestCibotPrintsAPatchThatMakesTheTestSucceed(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "answer.txt"), []byte("41\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-config", "cibot/task.yaml", "-folder", folder, "-test"}
	patch := output(t, example(t, "cibot", append(args, "test $(cat answer.txt) = 42")...))
	apply := exec.CommandContext(t.Context(), "git", "apply")
	apply.Dir, apply.Stdin = folder, strings.NewReader(patch)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v %s\n%s", err, out, patch)
	}
	if got, err := os.ReadFile(filepath.Join(folder, "answer.txt")); err != nil || string(got) != "42\n" {
		t.Errorf("the patch makes it %q, %v", got, err)
	}
	// cibot runs the test itself: if the test fails, there is no patch.
	if out, err := example(t, "cibot", append(args, "test $(cat answer.txt) = 43")...).Output(); err == nil || len(out) > 0 {
		t.Errorf("with a test that fails: %v, and it prints %q", err, out)
	}
}

func TestEvalTellsWhatWasSolved(t *testing.T) {
	out := output(t, example(t, "eval"))
	for _, want := range []string{"file +solved ", `sum +wrong \(status 1\) `, "slow +timeout "} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(out) {
			t.Errorf("it prints no line %q:\n%s", want, out)
		}
	}
}

func TestForkPrintsTheSmallestPatch(t *testing.T) {
	out := output(t, example(t, "fork"))
	if !strings.HasPrefix(out, "# the smallest patch is that of \"try it in place\"\ndiff --git a/way.txt") ||
		!strings.Contains(out, "+read the task\n+try it in place\n") {
		t.Errorf("it prints:\n%s", out)
	}
}

// TestAShippedProgramNeedsNeitherGoNorASecondFile builds a program with the runner in it. It
// runs the program in a container that has nothing else, and on this machine without Go, cache
// and home.
func TestAShippedProgramNeedsNeitherGoNorASecondFile(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Fatal("the example carries a runner for linux/amd64 only")
	}
	dir := t.TempDir()
	here, err := filepath.Abs("shipping")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "bin", "shipping")
	// Place the runner as "go generate" does, without writing to this repository.
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "runners", "envrunner-linux-amd64"): runner(t)}})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := build("-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "./shipping"); err != nil {
		t.Fatal(err)
	}
	const want = "hello.txt is in the workspace"
	find := func(context.Context, string, string) (string, error) { return runner(t), nil }
	box, err := docker.Provider{Pull: docker.PullNever, Runner: find}.Create(t.Context(), primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := box.Terminate(t.Context()); err != nil {
			t.Error(err)
		}
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	}()
	file, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := box.WriteFile(t.Context(), "shipping", file, primitives.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	result, err := primitives.Run(t.Context(), box, primitives.Command{Args: []string{"./shipping"}}, primitives.RunOptions{})
	if err != nil || !strings.Contains(string(result.Stdout), want) {
		t.Errorf("in a clean container: %v, %v\n%s%s", result.Status, err, result.Stdout, result.Stderr)
	}
	cmd := exec.CommandContext(t.Context(), program, "docker", testdocker.Busybox(t))
	cmd.Env = []string{"PATH=" + dir, "HOME=" + filepath.Join(dir, "home"), "DOCKER_HOST=" + os.Getenv("DOCKER_HOST")}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
		t.Errorf("with a container: %v\n%s", err, out)
	}
}
