package codex

import (
	"cmp"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// mode is a permission mode: when Codex asks the user, and what commands may do without asking.
type mode struct {
	id       string
	approval string // an approval policy of Codex
	sandbox  string // a sandbox mode of Codex
	policy   map[string]any
	plans    bool // the agent makes a plan and asks questions
}

// askMode asks about each command and each change of a file.
const askMode = "untrusted"

// modes returns the permission modes. The modes that ask before each action or never ask turn off
// Codex's own sandbox for commands, because the session has a sandbox. The other modes depend on
// Codex's sandbox, which does not work in every container.
func modes() []mode {
	fullAccess := map[string]any{"type": "dangerFullAccess"}
	return []mode{
		{id: askMode, approval: "untrusted", sandbox: "danger-full-access", policy: fullAccess},
		{id: "plan", approval: "untrusted", sandbox: "danger-full-access", policy: fullAccess, plans: true},
		{id: "read-only", approval: "on-request", sandbox: "read-only", policy: map[string]any{
			"type": "readOnly", "networkAccess": false,
		}},
		{id: "auto", approval: "on-request", sandbox: "workspace-write", policy: map[string]any{
			"type": "workspaceWrite", "writableRoots": []string{}, "networkAccess": false,
			"excludeTmpdirEnvVar": false, "excludeSlashTmp": false,
		}},
		{id: "full-access", approval: "never", sandbox: "danger-full-access", policy: fullAccess},
	}
}

// collaboration returns Codex's collaboration mode, which says whether the agent makes a plan.
func (m mode) collaboration(model string) map[string]any {
	kind := "default"
	if m.plans {
		kind = "plan"
	}
	return map[string]any{"mode": kind, "settings": map[string]any{
		"model": model, "reasoning_effort": nil, "developer_instructions": nil,
	}}
}

func modeOf(a runnerscripts.Agent) string { return cmp.Or(a.PermissionMode, askMode) }

func findMode(id string) (mode, error) {
	var ids []string
	for _, m := range modes() {
		if m.id == id {
			return m, nil
		}
		ids = append(ids, m.id)
	}
	return mode{}, agent.Invalid("choose one of the permission modes of Codex, %v: %q is none", ids, id)
}
