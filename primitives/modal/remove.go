package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	sdk "github.com/modal-labs/modal-client/go"
)

// Remove ends a live sandbox of [Provider.Create] by its ID, or by its name in the
// configuration's app, without regard to its content. Errors are those of [Provider.Attach].
func (p Provider) Remove(ctx context.Context, id string) error {
	return wrap("remove", id, p.remove(ctx, id))
}

func (p Provider) remove(ctx context.Context, id string) error {
	if !validName(id) {
		return fmt.Errorf("%w: no sandbox can have this ID or name", fs.ErrNotExist)
	}
	c, err := connect(p)
	if err != nil {
		return err
	}
	defer c.Close()
	box, _, err := c.findSandbox(ctx, p, id)
	if err != nil {
		return err
	}
	return errors.Join(endSandbox(ctx, box), box.Detach())
}

var errNotOurs = fmt.Errorf("%w: it was not made as a sandbox of agentenv", fs.ErrNotExist)

// findSandbox returns a live sandbox that this package created, and its tags. The caller must
// detach from it.
func (c *client) findSandbox(ctx context.Context, p Provider, id string) (*sdk.Sandbox, map[string]string, error) {
	box, tags, err := c.lookUp(ctx, p, id)
	if err != nil {
		return nil, nil, err
	}
	if tags[tagSandbox] == "" {
		return nil, nil, errors.Join(errNotOurs, box.Detach())
	}
	result, err := c.result(ctx, box.SandboxID)
	if err != nil {
		return nil, nil, errors.Join(explain(err), box.Detach())
	}
	if cause := statusOf(result).EndCause(); cause != nil {
		return nil, nil, errors.Join(&kind{cause, fs.ErrNotExist}, box.Detach())
	}
	return box, tags, nil
}

// lookUp returns a sandbox and its tags. The caller must detach from it.
func (c *client) lookUp(ctx context.Context, p Provider, id string) (box *sdk.Sandbox, tags map[string]string, err error) {
	if strings.HasPrefix(id, sandboxPrefix) {
		box, err = c.Sandboxes.FromID(ctx, id, nil)
	} else {
		box, err = c.Sandboxes.FromName(ctx, p.app(), id, &sdk.SandboxFromNameParams{Environment: p.Environment})
	}
	if err != nil {
		return nil, nil, explain(err)
	}
	if tags, err = box.GetTags(ctx, nil); err != nil {
		return nil, nil, errors.Join(explain(err), box.Detach())
	}
	return box, tags, nil
}
