package main

import (
	"context"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// checkModal looks for an account at Modal and at what sandboxes need there. Without
// one only they do not work, and failed is the status of that.
func checkModal(ctx context.Context, cfg environment.Config, failed string) []finding {
	account := finding{Check: "modal account", Status: failed}
	if !cfg.Sandbox.Modal.Present() {
		account.Detail = "there are no credentials"
		account.Fix = "for --sandbox modal: run 'modal token new', or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
		return []finding{account}
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if err := cfg.Sandbox.Modal.Check(ctx); err != nil {
		account.Detail = err.Error()
		return []finding{account}
	}
	account.Status, account.Detail = statusOK, "Modal takes the credentials"
	runner := finding{Check: "modal runner", Status: statusOK}
	name, err := bundle.Path(ctx, bundle.Config{
		Explicit: cfg.Runner, OS: "linux", Arch: modal.Arch,
	})
	if runner.Detail = name; err != nil {
		runner.Status, runner.Detail = statusMissing, "linux/"+modal.Arch+": "+err.Error()
		runner.Fix = "no sandbox can be made at Modal without it"
	}
	return []finding{account, runner}
}
