package session_test

import (
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/sessiontest"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestASessionInThisProgramKeepsTheContract(t *testing.T) {
	sessiontest.Run(t, sessiontest.Harness{
		Open: func(t *testing.T) sessiontest.Host {
			return sessiontest.Local(t, session.HostConfig{Store: store.NewMemory(), Session: session.Config{
				Environment: environment.Config{OnPermission: environment.AnswerLater},
			}})
		},
		Environment: func(t *testing.T) environment.Config {
			return environment.Config{Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}}}
		},
	})
}
