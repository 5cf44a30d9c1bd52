package session

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// What programs store of the path of their folder: an absolute link, a script whose first line names the
// interpreter, as pip makes them, and a build folder that works at its own path only, as CMake's.
const storesPath = `set -e
ln -s "$PWD/dir" link; mkdir dir bin; echo linked >dir/f
ln -s /bin/sh bin/sh; printf '#!%s/bin/sh\necho tool\n' "$PWD" >bin/tool; chmod +x bin/tool
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" >CMakeCache.txt`

// usesPath writes what still works into the file out.
const usesPath = `{ [ "$(readlink link)" = "$PWD/dir" ] && cat link/f; bin/tool; grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" CMakeCache.txt && echo built; } >out 2>/dev/null; true`

// A real virtual environment of Python, where there is one.
const (
	makesVenv = `set -e
python3 -m venv --without-pip v; printf '#!%s/v/bin/python3\nimport sys; print(sys.prefix)\n' "$PWD" >v/bin/tool; chmod +x v/bin/tool`
	usesVenv = `. v/bin/activate && [ "$(command -v python3)" = "$PWD/v/bin/python3" ] && [ "$(tool)" = "$PWD/v" ] && echo venv >>out; true`
)

const worksAll, worksVenv, worksLinks = "linked\ntool\nbuilt\n", "linked\ntool\nbuilt\nvenv\n", "linked\n"

// worksBeside is what works while the folder at the old path is still there.
const worksBeside = "linked\ntool\n"

// building returns the configuration of a session whose prompt "make" makes such files, and whose prompt "use" uses them.
func building(t *testing.T, box environment.Sandbox) Config {
	t.Helper()
	made, used := storesPath, usesPath
	if box.Type == "local" {
		made, used = made+"\n"+makesVenv, used+"\n"+usesVenv
	}
	data, err := json.Marshal(runnerscripts.Scenario{Turns: []runnerscripts.ScenarioTurn{
		{When: "make", Steps: steps(run("sh", "-c", made))}, {When: "use", Steps: steps(run("sh", "-c", used))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := scripted(t)
	cfg.Environment.Agent.Config, cfg.Store = data, store.NewMemory()
	if box.Type != "local" {
		cfg.Environment.Sandbox = box
	}
	return cfg
}

// works prompts the agent to use the files and returns what works.
func works(t *testing.T, s *AgentSession) string {
	t.Helper()
	converse(t, s, "use")
	out, _ := written(t, s, "out")
	return out
}

// saidPath returns the messages that name an old path of the workspace.
func saidPath(t *testing.T, s *AgentSession) []string {
	t.Helper()
	var said []string
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypeLog {
			if m := payload[runnerscripts.Log](t, ev).Message; strings.Contains(m, "still name the old path") {
				said = append(said, m)
			}
		}
	}
	return said
}

// A session's sandboxes have their workspace at one path.
func TestWhatStoresThePathOfTheWorkspaceWorksInLaterSandboxes(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"local": worksVenv, "docker": worksAll} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			box := environment.Sandbox{Type: "local"}
			if kind == "docker" {
				box = inContainer(t)
				box.User = "tester"
			}
			cfg := building(t, box)
			s := start(t, cfg)
			converse(t, s, "make")
			first := s.live().ID()
			if got := works(t, s); got != want {
				t.Fatalf("before: %q", got)
			}
			path := s.live().WorkspacePath()
			if err := s.TerminateEnvironment(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := works(t, s); got != want || s.live().ID() == first {
				t.Errorf("in the next sandbox: %q", got)
			}
			if err := s.Rewind(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			if got := works(t, s); got != want {
				t.Errorf("after a rewind: %q", got)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			cfg.ID = s.ID()
			again := start(t, cfg)
			if got := works(t, again); got != want || again.live().WorkspacePath() != path {
				t.Errorf("in another program: %q at %s, want %s", got, again.live().WorkspacePath(), path)
			}
			if said := saidPath(t, again); len(said) > 0 {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// Copies in containers have the path of the original. On the machine both live at once, so that a copy has
// another path: links are changed, and the session says what is not.
func TestForksHaveThePathIfTheyCan(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"local": worksBeside, "docker": worksAll} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			box := environment.Sandbox{Type: "local"}
			if kind == "docker" {
				box = inContainer(t)
			}
			s := start(t, building(t, box))
			converse(t, s, "make")
			live, err := s.Fork(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			from, err := s.ForkFrom(t.Context(), 2, 2)
			if err != nil {
				t.Fatal(err)
			}
			paths := map[string]bool{s.live().WorkspacePath(): true}
			for i, c := range append(live, from...) {
				closeLater(t, c)
				if got := works(t, c); got != want {
					t.Errorf("fork %d: %q, want %q", i, got, want)
				}
				own := c.live().WorkspacePath()
				if said := saidPath(t, c); (len(said) == 1) != (kind == "local") {
					t.Errorf("fork %d says %q", i, said)
				}
				if kind == "local" && paths[own] || kind == "docker" && !paths[own] {
					t.Errorf("fork %d works in %s, others in %v", i, own, paths)
				}
				paths[own] = true
				// From now on the fork's path is its own.
				if err := c.TerminateEnvironment(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := works(t, c); got != want || c.live().WorkspacePath() != own {
					t.Errorf("the next sandbox of fork %d: %q in %s, want %s", i, got, c.live().WorkspacePath(), own)
				}
				if err := c.Rewind(t.Context(), 2); err != nil { // of the parent, at its path
					t.Fatal(err)
				}
				if got := works(t, c); got != want || c.live().WorkspacePath() != own {
					t.Errorf("fork %d after a rewind: %q in %s, want %s", i, got, c.live().WorkspacePath(), own)
				}
			}
			if err := s.TerminateEnvironment(t.Context()); err != nil {
				t.Fatal(err)
			}
			whole := worksAll
			if kind == "local" {
				whole = worksVenv
			}
			if got := works(t, s); got != whole {
				t.Errorf("the original: %q", got)
			}
		})
	}
}

// The files of an image at the path of the workspace are there at first, and only then: a session that has
// removed one does not get it back.
func TestFilesOfTheImageDoNotComeBack(t *testing.T) {
	t.Parallel()
	box := inContainer(t)
	box.WorkspacePath = "/bin"
	cfg := scripted(t, steps(run("rm", "wget")), steps(run("true")))
	cfg.Environment.Sandbox = box
	s := start(t, cfg)
	converse(t, s, "remove it")
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	converse(t, s, "look")
	files, err := s.live().WorkspaceFiles(t.Context(), environment.FilesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Path)
	}
	if strings.Contains(strings.Join(names, " "), "wget") || !strings.Contains(strings.Join(names, " "), "busybox") {
		t.Errorf("the workspace has %q", names)
	}
}

// A sandbox of another session at the path is left alone.
func TestATakenPathIsNotShared(t *testing.T) {
	t.Parallel()
	cfg := building(t, environment.Sandbox{Type: "local"})
	s := start(t, cfg)
	converse(t, s, "make")
	path := s.live().WorkspacePath()
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := cfg.Environment.Sandbox.Provider.Create(t.Context(), primitives.Spec{WorkspacePath: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = other.Terminate(t.Context()); _ = other.Close() }()
	if got := works(t, s); got != worksLinks || s.live().WorkspacePath() == path || len(saidPath(t, s)) != 1 {
		t.Errorf("%q in %s, which says %q", got, s.live().WorkspacePath(), saidPath(t, s))
	}
	if files, err := other.List(t.Context(), ".", primitives.ListOptions{}); err != nil || len(files) > 0 {
		t.Errorf("the other sandbox has %v, %v", files, err)
	}
}
