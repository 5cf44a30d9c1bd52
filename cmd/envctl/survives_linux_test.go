package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

var update = flag.Bool("update", false, "write the table of docs/sessions.md from what the test has seen")

// makeSocket leaves a socket at the path in its argument, as no command of a shell does.
func makeSocket() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: os.Args[1], Net: "unix"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close() // the process ends
}

// TestWhatSurvivesWhat shows the table of docs/sessions.md: an agent makes a file of each kind, and look.sh
// prints what is left of them on each way out of their sandbox.
func TestWhatSurvivesWhat(t *testing.T) {
	alone(t)
	programs, err := withoutRaces()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	dir := t.TempDir()
	s := &survivors{t: t, dir: dir, app: filepath.Join(dir, "app"), clone: filepath.Join(dir, "clone")}
	s.look = s.read("testdata/survives/look.sh")
	s.run(dir, `git init -q -b main app && cd app && git config user.name Ada && git config user.email ada@example.com
echo ignored >.gitignore && git add . && git commit -q -m first && cp -r . ../clone`)
	config := s.config()

	id := s.make(config, "--patch", filepath.Join(dir, "patch"), "--branch", "work")
	for line := range strings.Lines(s.envctl("exec", id, "--", "sh", "-c", s.look)) {
		if !strings.HasSuffix(line, ": yes\n") {
			t.Errorf("where it was made: %s", line) // or "no" on each way would say nothing
		}
	}
	s.envctl("rm", id)
	s.attach("next sandbox", id)
	s.envctl("attach", id, "remove")
	s.envctl("rewind", id+"@2")
	s.attach("`rewind`", id)
	fork := strings.TrimSpace(s.envctl("fork", id+"@2"))
	s.attach("`fork`", fork)
	s.envctl("rm", s.sandbox(fork), s.sandbox(id))
	id = strings.TrimSpace(s.envctl("move", s.make(config), "--to", "docker", "--config", s.container()))
	defer s.envctl("rm", id) // a container that outlives a failed test is nobody's
	s.seen("`move` to docker", s.envctl("exec", id, "--", "sh", "-c", s.look))

	s.apply(config)
	s.run(s.clone, "git apply ../patch")
	s.seen("`--patch`", s.run(s.clone, s.look))
	s.run(s.app, "git clean -q -ffdx && git checkout -q work")
	s.seen("`--branch`", s.run(s.app, s.look))
	s.compare("../../docs/sessions.md")
}

// survivors collects the columns of the table.
type survivors struct {
	t          *testing.T
	dir, look  string
	app, clone string // repositories that begin with the same files
	ways       []string
	kinds      []string
	cells      map[string][]string // by kind, of each way
}

// make runs an agent that makes all kinds and returns the ID of its sandbox, which stays.
func (s *survivors) make(config string, args ...string) string {
	s.t.Helper()
	id := filepath.Join(s.t.TempDir(), "id")
	s.envctl(append([]string{"run", "--config", config, "--folder", s.app, "--keep", "--id-file", id, "make"}, args...)...)
	return strings.TrimSpace(s.read(id))
}

// seen adds a column: what look.sh has printed.
func (s *survivors) seen(way, printed string) {
	s.t.Helper()
	s.ways = append(s.ways, way)
	if s.cells == nil {
		s.cells = map[string][]string{}
	}
	for line := range strings.Lines(printed) {
		kind, cell, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			s.t.Fatalf("%s: look.sh prints %q", way, line)
		}
		if len(s.ways) == 1 {
			s.kinds = append(s.kinds, kind)
		}
		s.cells[kind] = append(s.cells[kind], cell)
	}
	for _, kind := range s.kinds {
		if len(s.cells[kind]) != len(s.ways) {
			s.t.Fatalf("%s: look.sh says nothing of %q", way, kind)
		}
	}
}

// attach adds a column: what the agent of a session sees when it goes on.
func (s *survivors) attach(way, id string) {
	s.t.Helper()
	out := filepath.Join(s.dir, "out")
	s.envctl("attach", id, "look "+out)
	s.seen(way, s.read(out))
	if err := os.Remove(out); err != nil {
		s.t.Fatal(err)
	}
}

// sandbox returns the ID of the sandbox of a session.
func (s *survivors) sandbox(session string) string {
	s.t.Helper()
	var shown struct{ Sandbox struct{ ID string } }
	if err := json.Unmarshal([]byte(s.envctl("sessions", "show", "--json", session)), &shown); err != nil {
		s.t.Fatal(err)
	}
	return shown.Sandbox.ID
}

// apply adds the column of --apply, which refuses all if it refuses a link: then the agent makes all but that.
func (s *survivors) apply(config string) {
	s.t.Helper()
	refused := ""
	for {
		out, errOut, err := s.try("run", "--config", config, "--folder", s.app, "--apply", "make"+refused)
		if err == nil {
			break
		}
		m := regexp.MustCompile(`: (\w+): path leads out of the workspace: a symbolic link to `).FindStringSubmatch(errOut)
		if m == nil {
			s.t.Fatalf("%v\n%s%s", err, out, errOut)
		}
		refused += " " + m[1]
	}
	s.seen("`--apply`", s.run(s.app, fmt.Sprintf("refused=%q\n%s", refused, s.look)))
}

// compare compares the table with the one in a page, or writes it with -update.
func (s *survivors) compare(page string) {
	var table strings.Builder
	fmt.Fprintf(&table, "| | %s |\n|---|%s\n", strings.Join(s.ways, " | "), strings.Repeat(":-:|", len(s.ways)))
	for _, kind := range s.kinds {
		fmt.Fprintf(&table, "| %s | %s |\n", kind, strings.Join(s.cells[kind], " | "))
	}
	const begin, end = "<!-- survives -->\n", "<!-- /survives -->"
	before, rest, found := strings.Cut(s.read(page), begin)
	old, after, closed := strings.Cut(rest, end)
	switch {
	case !found || !closed:
		s.t.Errorf("%s has no table between its marks", page)
	case *update:
		if err := os.WriteFile(page, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			s.t.Error(err)
		}
	case old != table.String():
		s.t.Errorf("%s has\n%sthe test has seen\n%srun the test with -update to write that", page, old, &table)
	}
}

// config returns the configuration of a sandbox on this machine, whose agent has three prompts: make, look FILE
// and remove.
func (s *survivors) config() string {
	socket, err := exec.LookPath("make-socket")
	if err != nil {
		s.t.Fatal(err)
	}
	turn := func(prompt, script string) map[string]any {
		return map[string]any{"when": prompt, "steps": []any{map[string]any{"run": []string{"sh", "-c", script, "{{prompt}}"}}}}
	}
	return s.write(map[string]any{
		"sandbox":     "local",
		"checkpoints": map[string]any{"ignore": []string{"left-out"}},
		"agent": map[string]any{"name": "script", "config": map[string]any{"turns": []any{
			turn("make", "make_socket="+socket+"\n"+s.read("testdata/survives/make.sh")),
			turn("look", `exec >"${0#look }"`+"\n"+s.look),
			turn("remove", "rm -rf ./* .git"),
		}}},
	})
}

// container returns the configuration of a container.
func (s *survivors) container() string {
	return s.write(map[string]any{"sandbox": environment.Sandbox{
		Type:     "docker",
		Spec:     primitives.Spec{Image: testdocker.Busybox(s.t), Network: "none", Labels: testdocker.Labels()},
		Provider: &docker.Provider{Pull: docker.PullNever},
	}})
}

// write writes a configuration and returns its path.
func (s *survivors) write(config any) string {
	s.t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		s.t.Fatal(err)
	}
	return file(s.t, "c.yaml", string(data))
}

func (s *survivors) read(name string) string {
	s.t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// run runs a script of a shell and returns its output.
func (s *survivors) run(dir, script string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "sh", "-c", "umask 022\n"+script)
	var errOut bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &errOut
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%v\n%s%s", err, out, &errOut)
	}
	return string(out)
}

// envctl runs the program and returns its output.
func (s *survivors) envctl(args ...string) string {
	s.t.Helper()
	out, errOut, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("envctl %.200q: %v\n%s%s", args, err, out, errOut)
	}
	return out
}

// try runs the program, which may fail.
func (s *survivors) try(args ...string) (out, errOut string, _ error) {
	cmd := exec.CommandContext(s.t.Context(), "envctl", args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	return o.String(), e.String(), err
}
