package environment

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAnotherAgentContinuesInAKeptSandbox(t *testing.T) {
	box := sandbox(t)
	cfg := Config{Sandbox: toKeep(box), Agent: scenario(t, turn(runnerscripts.ScenarioStep{Text: "the word is plum"}))}
	id, _ := keptSandbox(t, cfg)
	first := attach(t, id, box)
	if _, err := collect(t.Context(), first, Query{Prompt: "remember a word"}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil { // the runner stays
		t.Fatal(err)
	}

	second, err := Attach(t.Context(), Config{
		Sandbox: box, Agent: Agent{Name: "command", Command: []string{"/bin/sh", "-c", "cat > told; echo heard"}},
	}, id)
	if err != nil {
		t.Fatal(err)
	}
	events, err := collect(t.Context(), second, Query{Prompt: "go on"})
	if err != nil {
		t.Fatal(err)
	}
	var restored []runnerscripts.TranscriptRestored
	for _, ev := range events {
		if v, ok := ev.Value().(*runnerscripts.TranscriptRestored); ok {
			restored = append(restored, *v)
		}
	}
	if want := (runnerscripts.TranscriptRestored{From: "script", Way: runnerscripts.RestoredSummary}); len(restored) != 1 || restored[0] != want {
		t.Errorf("restored: %+v", restored)
	}
	told, err := os.ReadFile(filepath.Join(second.Primitive().Paths().Workspace, "told"))
	if err != nil || !strings.Contains(string(told), "remember a word") || !strings.Contains(string(told), "the word is plum") {
		t.Errorf("the agent was told %s, %v", told, err)
	}
	if got := conversation(t, events); strings.Contains(got, "plum") || !strings.Contains(got, "go on") {
		t.Errorf("the conversation shows:\n%s", got)
	}
	if tr, err := second.ReadTranscript(t.Context()); err != nil || tr.Agent != "command" {
		t.Errorf("transcript of %q, %v", tr.Agent, err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	third := attach(t, id, box) // without a name: the last agent
	if third.cfg.Agent.Name != "command" {
		t.Errorf("this machine remembers %q", third.cfg.Agent.Name)
	}
}

func TestProfilesHaveNames(t *testing.T) {
	dir, user := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", user)
	t.Setenv("HOME", user)
	config, err := os.UserConfigDir()
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(config, "agentenv", "profiles")
	for file, text := range map[string]string{
		filepath.Join(dir, "profiles", "reviewer.yaml"):     "description: Reviews\nsystem_prompt: of the project\n",
		filepath.Join(own, "reviewer.json"):                 `{"system_prompt":"of the user"}`,
		filepath.Join(own, "tester", "profile.yaml"):        "description: Tests\n",
		filepath.Join(own, "broken.yaml"):                   "no_such_key: 1\n",
		filepath.Join(own, "README.md"):                     "not a profile",
		filepath.Join(dir, "task.yaml"):                     "agent: script\nprofile: reviewer\n",
		filepath.Join(dir, "wrong.yaml"):                    "agent: script\nprofile: nobody\n",
		filepath.Join(dir, "profiles", ".hidden", "x.yaml"): "",
		filepath.Join(dir, "reviewer"):                      "system_prompt: of a repository\n",
		filepath.Join(dir, "foreign"):                       "system_prompt: of a repository\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	task := filepath.Join(dir, "task.yaml")
	list, err := Profiles(task)
	if err != nil || len(list) != 3 || list[0].Name != "broken" || list[0].Problem == "" ||
		list[1] != (ProfileInfo{Name: "reviewer", Path: filepath.Join(dir, "profiles", "reviewer.yaml"), Description: "Reviews"}) ||
		list[2].Description != "Tests" {
		t.Errorf("profiles %+v, %v", list, err)
	}
	if cfg, err := LoadConfig(task); err != nil || cfg.Profile.SystemPrompt != "of the project" {
		t.Errorf("the configuration's profile is %+v, %v", cfg.Profile, err)
	}
	if p, err := FindProfile("reviewer", ""); err != nil || p.SystemPrompt != "of the user" {
		t.Errorf("the user's profile is %+v, %v", p, err)
	}
	// What a repository has under the name is another profile, which could run its commands here.
	t.Chdir(dir)
	if p, err := FindProfile("reviewer", ""); err != nil || p.SystemPrompt != "of the user" {
		t.Errorf("beside a file of that name: %+v, %v", p, err)
	}
	if _, err := FindProfile("foreign", ""); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "./foreign") {
		t.Errorf("a file of that name alone: %v", err)
	}
	if p, err := FindProfile("./foreign", ""); err != nil || p.SystemPrompt != "of a repository" {
		t.Errorf("its path: %+v, %v", p, err)
	}
	_, err = LoadConfig(filepath.Join(dir, "wrong.yaml"))
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), `"nobody"`) || !strings.Contains(err.Error(), "broken, reviewer, tester") {
		t.Errorf("an unknown name: %v", err)
	}
	if _, err := FindProfile("./nobody", ""); err == nil || errors.Is(err, ErrConfig) {
		t.Errorf("a path that is not there: %v", err)
	}
}
