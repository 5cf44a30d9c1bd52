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
// or in the file of Modal's own tools. It contacts nobody, so they may not be good.
func Present() bool {
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

// Check asks Modal whether it takes the credentials. Of cfg only App, Environment and
// Profile count. Errors are those of [List].
func Check(ctx context.Context, cfg Config) error {
	return wrap("check", cfg.app(), check(ctx, cfg))
}

func check(ctx context.Context, cfg Config) error {
	c, err := connect(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.findApp(ctx, cfg, false)
	if isNotFound(err) && cfg.App == "" {
		return nil // the first sandbox makes it
	}
	return err
}

// BuildImage builds the image that [New] makes sandboxes of, unless Modal has it, and
// returns its ID, which is good as Config.Image. Of cfg count App, Environment,
// Profile, Image, Dockerfile and Progress. Errors are those of New.
func BuildImage(ctx context.Context, cfg Config) (id string, err error) {
	id, err = buildImage(ctx, cfg)
	return id, wrap("build", cfg.Image, err)
}

func buildImage(ctx context.Context, cfg Config) (string, error) {
	if err := cfg.checkImage(); err != nil {
		return "", err
	}
	c, err := connect(cfg)
	if err != nil {
		return "", err
	}
	defer c.Close()
	app, err := c.findApp(ctx, cfg, true)
	if err != nil {
		return "", err
	}
	image, err := c.image(ctx, app, cfg)
	if err != nil {
		return "", err
	}
	return image.ImageID, nil
}

// Look returns what became of a sandbox, also of one that has ended. Of cfg only App,
// Environment and Profile count. An unknown ID is fs.ErrNotExist.
func Look(ctx context.Context, cfg Config, id string) (primitives.State, error) {
	state, err := look(ctx, cfg, id)
	return state, wrap("look", id, err)
}

func look(ctx context.Context, cfg Config, id string) (primitives.State, error) {
	if !validName(id) || !strings.HasPrefix(id, sandboxPrefix) {
		return primitives.State{}, fmt.Errorf("%w: no sandbox can have this ID", fs.ErrNotExist)
	}
	c, err := connect(cfg)
	if err != nil {
		return primitives.State{}, err
	}
	defer c.Close()
	if _, err := c.findApp(ctx, cfg, false); err != nil {
		return primitives.State{}, err
	}
	// Not by its tags: Modal may have forgotten those of one that has ended.
	result, err := c.result(ctx, id)
	if err != nil {
		return primitives.State{}, explain(err)
	}
	return statusOf(result).State, nil
}
