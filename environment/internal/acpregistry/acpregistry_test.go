package acpregistry

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestTheCatalogHasTheAgentsOfTheRegistry(t *testing.T) {
	names := Names()
	if !slices.IsSorted(names) || len(catalog().Commit) != 40 || len(catalog().Date) != 10 {
		t.Errorf("%q of %s, %s", names, catalog().Commit, catalog().Date)
	}
	for _, name := range names {
		if a, ok := Find(name); !ok || a.Name() != name || !runnerscripts.IsRegistryAgent(name) {
			t.Errorf("%s: %+v, %v", name, a, ok)
		}
	}
	for _, name := range []string{"goose", "acp:", "acp", "acp:gooose", "ACP:goose", "acp:goose ", "acp:../goose", ""} {
		if a, ok := Find(name); ok {
			t.Errorf("%q is %+v", name, a)
		}
	}
	if r := find(t, "acp:gemini").Complete(runnerscripts.Recipe{Agent: "acp", Supports: []runnerscripts.Feature{"x"}}); r.Agent != "acp:gemini" || r.Program != "gemini" ||
		len(r.NPM) != 1 || r.NPM[0] != "@google/gemini-cli@"+r.Version || len(r.Debian) == 0 || len(r.Supports) != 1 {
		t.Errorf("a package of npm: %+v", r)
	}
	if r := find(t, "acp:goose").Complete(runnerscripts.Recipe{}); r.Program != "goose" || r.Version == "" || len(r.NPM)+len(r.Debian) > 0 {
		t.Errorf("an archive: %+v", r)
	}
}

func find(t *testing.T, name string) Agent {
	t.Helper()
	a, ok := Find(name)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	return a
}

// TestNothingOfACatalogIsInterpreted checks that an entry cannot be more than a word of a command.
func TestNothingOfACatalogIsInterpreted(t *testing.T) {
	good := func() Agent {
		return Agent{ID: "a", Version: "1.2.3-beta+4", Program: "a_b.c", NPM: "@a/b@1.2.3-beta+4", UVX: "a-b==1!2.0", Args: []string{"--x=$(y)"}, Env: map[string]string{"A_1": "`z`"}}
	}
	parse := func(agents ...Agent) error {
		data, err := json.Marshal(Catalog{Agents: agents})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Parse(data)
		return err
	}
	if err := parse(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Agent, string){
		"id":      func(a *Agent, text string) { a.ID = text },
		"version": func(a *Agent, text string) { a.Version = "1" + text },
		"program": func(a *Agent, text string) { a.Program = "a" + text },
		"npm":     func(a *Agent, text string) { a.NPM = "a@1" + text },
		"uvx":     func(a *Agent, text string) { a.UVX = "a==1" + text },
		"env":     func(a *Agent, text string) { a.Env = map[string]string{"A" + text: ""} },
		"archive": func(a *Agent, text string) { a.Archives = map[string]string{"linux-x86_64": "https://a/" + text} },
	} {
		for _, text := range []string{" x", ";x", "$(x)", "`x`", "'", `"`, "\n", "|x", "&x", "<x", ">x", "\x00", "*"} {
			a := good()
			spoil(&a, text)
			if err := parse(a); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s with %q: %v", name, text, err)
			}
		}
	}
	for name, spoil := range map[string]func(*Agent){
		"an option as program":     func(a *Agent) { a.Program = "-x" },
		"a path as program":        func(a *Agent) { a.Program = "../a" },
		"a path as id":             func(a *Agent) { a.ID = ".." },
		"no id":                    func(a *Agent) { a.ID = "" },
		"no program":               func(a *Agent) { a.Program = "" },
		"an option as package":     func(a *Agent) { a.NPM = "--registry=https://x@1" },
		"a package of a folder":    func(a *Agent) { a.NPM = "./a@1" },
		"a package of git":         func(a *Agent) { a.NPM = "git+https://x/y@1" },
		"a package of any version": func(a *Agent) { a.NPM = "a" },
		"a version by its tag":     func(a *Agent) { a.NPM = "a@latest" },
		"an argument that ends":    func(a *Agent) { a.Args = []string{"a\x00b"} },
		"an unknown platform":      func(a *Agent) { a.Archives = map[string]string{"plan9-vax": "https://a/b"} },
		"no way to get it":         func(a *Agent) { a.NPM, a.UVX = "", "" },
	} {
		a := good()
		spoil(&a)
		if err := parse(a); err == nil {
			t.Errorf("%s is no error", name)
		}
	}
	if parse(good(), good()) == nil {
		t.Error("an agent may be there twice")
	}
	if _, err := Parse([]byte(`{"agents":[{"id":"a","run":"x"}]}`)); err == nil {
		t.Error("an unknown field is ignored")
	}
}

func TestAdviceSaysHowTheSandboxGetsTheAgent(t *testing.T) {
	for name, want := range map[string]string{
		"acp:gemini": "install the program \"gemini\" of the agent acp:gemini 0.27.3 in the sandbox, with 'npm install --global @google/gemini-cli@0.27.3'",
		"acp:goose":  `install the program "goose" of the agent acp:goose 1.23.2 in the sandbox, from https://github.com/block/goose/releases/download/v1.23.2/goose-aarch64-unknown-linux-gnu.tar.bz2`,
		"acp:code-assistant": `install the program "code-assistant" of the agent acp:code-assistant 0.2.4 in the sandbox; ` +
			`the ACP registry has none for linux-aarch64, only for darwin-aarch64, darwin-x86_64, linux-x86_64`,
	} {
		if got := find(t, name).Launch("linux", "arm64").Advice; got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := (Agent{ID: "a", Version: "1", Program: "a", UVX: "b==1"}).Advice("linux", "amd64"); !strings.HasSuffix(got, "in the sandbox, or uv, which runs it as 'uvx b==1'") {
		t.Error(got)
	}
}
