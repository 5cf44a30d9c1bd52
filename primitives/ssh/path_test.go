package ssh_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testssh"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
)

// A new workspace is removed with its sandbox, so it is no folder of the machine's user. The contract tests
// the path of an earlier sandbox.
func TestAPathThatCannotBeTheWorkspaceIsASettingError(t *testing.T) {
	testssh.Start(t)
	cfg := config(t, t.TempDir())
	cfg.Session = "talk"
	first := open(t, cfg)
	for at, why := range map[string]string{
		filepath.Join(t.TempDir(), "new"): "a new workspace is a folder of",
		first.Paths().Workspace:           "end the sandbox that works there first",
	} {
		cfg.WorkspacePath = at
		_, err := ssh.New(t.Context(), cfg)
		wrong, ok := errors.AsType[*primitives.SettingError](err)
		if !ok || wrong.Setting != "workspace_path" || !strings.Contains(wrong.Problem, why) {
			t.Errorf("%s: %v", at, err)
		}
	}
}
