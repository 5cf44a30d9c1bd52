package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// TestClaudeInAContainer runs the Claude Code script of the local tests in a container, whose
// image has the agent added, as a user that the image does not know.
func TestClaudeInAContainer(t *testing.T) {
	cfg := environment.Config{
		Agent:   environment.Agent{Name: "claude"},
		Sandbox: environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: testdocker.Node(t), Labels: testdocker.Labels()}, Provider: &docker.Provider{Pull: docker.PullNever}},
	}
	// Build the image here, where all tests lock the same file: the script would not wait for
	// other tests that need the same image.
	if _, err := environment.BuildImage(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	runScripts(t, testscript.Params{Files: []string{"testdata/script/claude.txtar"}}, map[string]string{
		"ANTHROPIC_BASE_URL": startModel(t, testdocker.Gateway(t)+":0"),
	}, fmt.Sprintf("sandbox: {type: docker, image: %q, grace: 10s, user: \"4321:4321\", labels: {%s}, docker: {pull: never}}\n",
		testdocker.Node(t), yamlLabels()))
}

// yamlLabels returns the labels of this test run, for a configuration file.
func yamlLabels() string {
	var list string
	for key, value := range testdocker.Labels() {
		list += fmt.Sprintf("%s: %q,", key, value)
	}
	return list
}

// TestImages builds and removes images on a base of the test's own, whose labels
// they inherit.
func TestImages(t *testing.T) {
	engine := docker.Provider{Pull: docker.PullNever, Runner: func(context.Context, string, string) (string, error) { return testdocker.Runner(t), nil }}
	base, err := engine.BuildImage(t.Context(), primitives.Spec{Image: testdocker.Busybox(t), Labels: testdocker.Labels(), Install: primitives.Install{
		Program: "no-such-program", Name: "agentenv-test-base", Labels: testdocker.Labels(),
		Commands: []string{testdocker.FakeNPM, fmt.Sprintf("echo %s %d >/test", t.Name(), os.Getpid())},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.RemoveImage(context.WithoutCancel(t.Context()), base.Ref); err != nil {
			t.Error(err)
		}
	})
	runScripts(t, testscript.Params{Dir: "testdata/docker"}, map[string]string{
		"BASE": base.Ref, "BASE_ID": base.ID, "BUSYBOX": testdocker.Busybox(t),
	}, "sandbox: docker\n")
}

func TestAnImageIsFoundByItsAgent(t *testing.T) {
	list := []environment.Image{
		{Ref: "agentenv-gemini:12ab", Agent: "gemini"}, {Ref: "agentenv-codex:34cd", Agent: "codex"}, {Ref: "agentenv-codex:34ef", Agent: "codex"},
	}
	if got, err := findImage(list, "gemini"); err != nil || got.Ref != list[0].Ref {
		t.Errorf("gemini: %q, %v", got.Ref, err)
	}
	_, err := findImage(list, "codex")
	if err == nil || !strings.Contains(err.Error(), list[1].Ref+" and "+list[2].Ref) {
		t.Errorf("codex: %v", err)
	}
}

func TestAnImageIsFoundByTheBeginningOfItsName(t *testing.T) {
	list := []environment.Image{{Ref: "agentenv-a:12ab"}, {Ref: "agentenv-b:34cd"}, {Ref: "agentenv-b:34ef"}}
	for name, want := range map[string]string{
		"agentenv-a:12ab": "agentenv-a:12ab", "agentenv-b:34c": "agentenv-b:34cd", "34e": "agentenv-b:34ef", "agentenv-a": "agentenv-a:12ab",
		"agentenv-b": "", "34": "", "agentenv": "", "": "",
	} {
		got, err := findImage(list, name)
		if got.Ref != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", name, got.Ref, err, want)
		}
	}
}
