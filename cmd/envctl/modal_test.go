package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
)

// TestAtModal runs the scripts in testdata/modal, each with its own sandboxes, on a test server
// that speaks Modal's protocol.
func TestAtModal(t *testing.T) {
	runScripts(t, testscript.Params{Dir: "testdata/modal"}, modalServer(t), "sandbox: {type: modal, image: \"debian:12\", grace: 1m}\n")
}

// modalServer starts a test server and returns the environment variables that select it.
func modalServer(t *testing.T) map[string]string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "modal.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	vars := make(map[string]string)
	for _, entry := range testmodal.New(t).Environ(config) {
		name, value, _ := strings.Cut(entry, "=")
		vars[name] = value
	}
	return vars
}

// TestClaudeAtModal runs the Claude Code script of the local tests in a sandbox at Modal, whose
// image has the agent added.
func TestClaudeAtModal(t *testing.T) {
	testneed.Root(t, "the server of the tests builds no images otherwise")
	vars := modalServer(t)
	vars["ANTHROPIC_BASE_URL"] = startModel(t, "127.0.0.1:0")
	runScripts(t, testscript.Params{Files: []string{"testdata/script/claude.txtar"}}, vars, `sandbox:
  type: modal
  image: node:22
  # npm in a sandbox of the server trusts what this machine does
  modal: {dockerfile: [ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt]}
`)
}
