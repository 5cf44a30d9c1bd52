package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	sdk "github.com/modal-labs/modal-client/go"
)

// Remove ends a live sandbox of [New] by its ID or, of the configuration's app, by
// its name, without asking what is in it. Of cfg only App, Environment and Profile
// count. Errors are those of [Attach].
func Remove(ctx context.Context, cfg Config, id string) error {
	return wrap("remove", id, remove(ctx, cfg, id))
}

func remove(ctx context.Context, cfg Config, id string) error {
	if !validName(id) {
		return fmt.Errorf("%w: no sandbox can have this ID or name", fs.ErrNotExist)
	}
	c, err := connect(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	box, _, err := c.findSandbox(ctx, cfg, id)
	if err != nil {
		return err
	}
	return errors.Join(endSandbox(ctx, box), box.Detach())
}

// findSandbox finds a live sandbox that this package made, and its tags. Whoever
// gets one detaches from it.
func (c *client) findSandbox(ctx context.Context, cfg Config, id string) (_ *sdk.Sandbox, _ map[string]string, err error) {
	var box *sdk.Sandbox
	if strings.HasPrefix(id, sandboxPrefix) {
		box, err = c.Sandboxes.FromID(ctx, id, nil)
	} else {
		box, err = c.Sandboxes.FromName(ctx, cfg.app(), id, &sdk.SandboxFromNameParams{Environment: cfg.Environment})
	}
	if err != nil {
		return nil, nil, explain(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, box.Detach())
		}
	}()
	tags, err := box.GetTags(ctx, nil)
	switch {
	case err != nil:
		return nil, nil, explain(err)
	case tags[tagSandbox] == "":
		return nil, nil, fmt.Errorf("%w: it was not made as a sandbox of agentenv", fs.ErrNotExist)
	}
	result, err := c.result(ctx, box.SandboxID)
	if err != nil {
		return nil, nil, explain(err)
	}
	if f := fateOf(result); f.cause != nil {
		return nil, nil, &kind{f.cause, fs.ErrNotExist}
	}
	return box, tags, nil
}
