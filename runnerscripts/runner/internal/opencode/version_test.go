package opencode

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestSetupDoesNotStartThePackagedProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, started := filepath.Join(dir, "bin", "opencode"), filepath.Join(dir, "started")
	agenttest.WriteFile(t, filepath.Join(dir, "package.json"), `{"name":"opencode-linux-x64","version":"1.99.0"}`)
	agenttest.WriteFile(t, program, "#!/bin/sh\ntouch "+started+"\necho 1.98.0\n")
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	s := agenttest.NewSession(t, agent.NewUUID(), programName)
	s.Agent.Command = []string{program}
	data, err := Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: s})
	if err != nil || data.AgentVersion != "1.99.0" {
		t.Errorf("version %q, %v", data.AgentVersion, err)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the program was started")
	}
}
