package modal

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Arch is the architecture of Modal's machines, as in runtime.GOARCH. They run Linux.
const Arch = "amd64"

// Present reports whether this machine has credentials for Modal, in the environment or in the
// configuration file of Modal's own tools. It does not contact Modal, so they may be invalid.
func (p Provider) Present() bool {
	for _, name := range []string{"MODAL_TOKEN_ID", "MODAL_OAUTH_REFRESH_TOKEN", "MODAL_OAUTH_CLIENT_ID"} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	file, err := configFile()
	if err != nil {
		return false
	}
	content, err := os.ReadFile(file)
	return err == nil && (bytes.Contains(content, []byte("token_id")) || bytes.Contains(content, []byte("oauth_")))
}

// Examine looks for credentials, checks that Modal accepts them, and finds the runner.
func (p Provider) Examine(ctx context.Context, _ primitives.Spec) []primitives.Finding {
	account := primitives.Finding{Subject: "account", Status: primitives.FindingFailed}
	if !p.Present() {
		account.Detail = "there are no credentials"
		account.Advice = "run 'modal token new', or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
		return []primitives.Finding{account}
	}
	if account.Err = wrap("check", p.app(), p.check(ctx)); account.Err != nil {
		return []primitives.Finding{account}
	}
	account.Status, account.Detail = primitives.FindingOK, "Modal takes the credentials"
	return []primitives.Finding{account, p.examineRunner(ctx)}
}

// examineRunner finds the runner for Modal's machines.
func (p Provider) examineRunner(ctx context.Context) primitives.Finding {
	f := primitives.Finding{Subject: "runner"}
	if p.Runner == nil {
		return primitives.Finding{Subject: "runner", Status: primitives.FindingFailed, Detail: "Runner is nil", Advice: "set it, for example to bundle.Find"}
	}
	var err error
	if f.Detail, err = p.Runner(ctx, "linux", Arch); err != nil {
		f.Status, f.Detail = primitives.FindingFailed, "linux/"+Arch+": "+err.Error()
		f.Advice = "no sandbox can be made at Modal without it"
	}
	return f
}

// check verifies that Modal accepts the credentials. Errors are those of List.
func (p Provider) check(ctx context.Context) error {
	c, err := connect(p)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.findApp(ctx, p, false)
	if isNotFound(err) && p.App == "" {
		return nil // the first sandbox creates the app
	}
	return err
}

// History returns how a sandbox ended; a running sandbox has no history. Modal does not report
// when it ended. An unknown ID is fs.ErrNotExist.
func (p Provider) History(ctx context.Context, id string) ([]primitives.Incident, error) {
	state, err := p.look(ctx, id)
	switch {
	case err != nil:
		return nil, wrap("look", id, err)
	case state.Running():
		return nil, nil
	case state.Status == primitives.StatusExited:
		return []primitives.Incident{{Message: fmt.Sprintf("ended with status %d", state.Exit.Code)}}, nil
	}
	return []primitives.Incident{{Message: string(state.Status)}}, nil
}

func (p Provider) look(ctx context.Context, id string) (primitives.State, error) {
	if !validName(id) || !strings.HasPrefix(id, sandboxPrefix) {
		return primitives.State{}, fmt.Errorf("%w: no sandbox can have this ID", fs.ErrNotExist)
	}
	c, err := connect(p)
	if err != nil {
		return primitives.State{}, err
	}
	defer c.Close()
	if _, err := c.findApp(ctx, p, false); err != nil {
		return primitives.State{}, err
	}
	// Do not look at the tags: Modal may have dropped those of an ended sandbox.
	result, err := c.result(ctx, id)
	if err != nil {
		return primitives.State{}, explain(err)
	}
	return statusOf(result).State, nil
}
