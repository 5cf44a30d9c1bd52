package environment

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/testmodal"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// atModal returns the configuration of a sandbox on a server that speaks Modal's
// protocol and ends with the test.
func atModal(t *testing.T) Sandbox {
	t.Helper()
	testmodal.New(t).Setenv(t)
	return Sandbox{Type: "modal", Modal: modal.Config{Image: "debian:12"}}
}
