package acp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// registered returns a session of an agent of the ACP registry, and the folder that is its PATH.
func registered(t *testing.T) (f *fixture, bin string) {
	t.Helper()
	bin = t.TempDir()
	f = newFixture(t, "")
	f.Session.Agent.Name, f.Session.Agent.Command = "acp:goose", nil
	f.Session.Agent.Env["PATH"] = bin
	f.Session.Launch = &runnerscripts.Launch{
		Program: "goose", Args: []string{"acp", "$(touch interpreted)", "a b"}, Env: map[string]string{"MARK": "of the registry", "OWN": "x"},
		UVX: "goose==1", Advice: "install goose",
	}
	return f, bin
}

// addProgram adds a program that writes its arguments and variables down, and is the agent of the tests.
func addProgram(t *testing.T, bin, name string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n{ printf '%s\\n' " + name + " \"$@\" \"$MARK\" \"$OWN\"; } >\"$HOME/started\"\nexec " + self + "\n"
	if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// It is not parallel: a program that another test is starting would hold the files of addProgram open for
// writing, and a file that is written to cannot be started.
func TestAnAgentOfTheRegistryIsStartedAsTheHostSays(t *testing.T) {
	for name, tt := range map[string]struct {
		has  []string
		want string
	}{
		"its program": {[]string{"goose", "uvx"}, "goose\nacp\n$(touch interpreted)\na b\nof the registry\nthe user's\n"},
		"through uvx": {[]string{"uvx"}, "uvx\ngoose==1\nacp\n$(touch interpreted)\na b\nof the registry\nthe user's\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f, bin := registered(t)
			f.Session.Agent.Env["OWN"] = "the user's"
			for _, program := range tt.has {
				addProgram(t, bin, program)
			}
			f.SetUp()
			f.Prompt(f.Start(), "say hello")
			got, err := os.ReadFile(filepath.Join(f.Session.Paths.Home, "started"))
			if err != nil || string(got) != tt.want {
				t.Errorf("started as %q, %v", got, err)
			}
			init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
			if len(init) != 1 || init[0].Agent != "acp:goose" {
				t.Errorf("session_initialized: %+v", init)
			}
			f.SameAsTranscript()
		})
	}
}

func TestAnAgentOfTheRegistryThatIsMissingIsAnErrorWithAdvice(t *testing.T) {
	t.Parallel()
	f, bin := registered(t)
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailAgentMissing) || !strings.HasPrefix(err.Error(), `install goose: exec: "goose": `) {
		t.Errorf("without uv: %v", err)
	}
	f.Session.Launch.UVX = ""
	addProgram(t, bin, "uvx")
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailAgentMissing) {
		t.Errorf("not of PyPI: %v", err)
	}
	addProgram(t, bin, "goose")
	f.Session.Agent.Command = []string{"mine"}
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailAgentMissing) || !strings.Contains(err.Error(), "agent.command") {
		t.Errorf("with a command that does not exist: %v", err)
	}
	f.Session.Agent.Command, f.Session.Launch = nil, nil
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), `"acp:goose"`) {
		t.Errorf("without a way to start it: %v", err)
	}
	// Another agent goes on with the conversation of one that the registry has no more.
	if _, err := f.Driver.Transcript(t.Context(), runnerscripts.TranscriptRequest{Session: f.Session}, nil); err != nil {
		t.Errorf("its transcript: %v", err)
	}
}
