package session

import (
	"context"
	"errors"

	"github.com/agentenv-dev/agentenv/environment"
)

// OpenMoved is [Open] for a session whose sandbox [environment.Environment.Move] has replaced:
// the session continues in env, and owns env from then on. cfg.Environment.Sandbox describes
// env. Queries that an earlier program left open fail. After an error the caller still owns env.
func OpenMoved(ctx context.Context, cfg Config, env *environment.Environment) (*AgentSession, error) {
	if cfg.ID == "" {
		return nil, errors.New("open session: ID is empty; give that of the session that has moved")
	}
	return openBranch(ctx, cfg, nil, &branch{sandbox: environmentSandbox{env, nil}})
}
