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

// Arch is what Modal's machines are, as in runtime.GOARCH; they run Linux.
const Arch = "amd64"

// Present reports whether this machine has credentials of Modal, in the environment
// or in the file of Modal's own tools. It does not contact Modal, so they may be invalid.
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

// Check asks Modal whether it takes the credentials. Errors are those of List.
func (p Provider) Check(ctx context.Context) error {
	return wrap("check", p.app(), p.check(ctx))
}

func (p Provider) check(ctx context.Context) error {
	c, err := connect(p)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.findApp(ctx, p, false)
	if isNotFound(err) && p.App == "" {
		return nil // the first sandbox makes it
	}
	return err
}

// History says how a sandbox has ended, and nothing of one that runs. Modal does not say
// when. An unknown ID is fs.ErrNotExist.
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
	// Not by its tags: Modal may have forgotten those of one that has ended.
	result, err := c.result(ctx, id)
	if err != nil {
		return primitives.State{}, explain(err)
	}
	return statusOf(result).State, nil
}
