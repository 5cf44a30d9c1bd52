package modal

import (
	"cmp"
	"context"
	"errors"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	// publishImage is the image of the sandbox that publishes the runner. It is pinned
	// and has a shell, chmod and sha256sum.
	publishImage = "alpine:3.21.3@sha256:a8560b36e8b8210634f77d9f7f9efd7ffa463e380b75e2e74aff4511df3ef88c"
	// publishTimeout is how long in total a new sandbox waits for the published runner before
	// it uploads its own.
	publishTimeout = 2 * time.Minute
	// publishLife is the maximum age of the sandbox that publishes the runner.
	publishLife = 5 * time.Minute
)

// publisher finds or publishes the image of a runner, concurrently with other work.
//
// All sandboxes of an environment of Modal trust that image. So it is built in a sandbox of its
// own, which contains nothing of a user: no image, no secret, no volume, no network. Only
// programs with a token of the environment can publish under its name, and no sandbox has such
// a token.
type publisher struct {
	runner *runner
	client *client
	app    *sdk.App
	cfg    config // of the sandbox that needs the runner
	until  time.Time
	cancel context.CancelFunc
	found  chan *sdk.Image
}

// publisher returns a publisher and starts its search.
func (r *runner) publisher(ctx context.Context, c *client, app *sdk.App, cfg config) *publisher {
	ctx, cancel := context.WithCancel(ctx)
	until := time.Now().Add(cmp.Or(cfg.publishTimeout, publishTimeout))
	p := &publisher{r, c, app, cfg, until, cancel, make(chan *sdk.Image, 1)}
	go func() {
		defer close(p.found)
		p.found <- p.obtain(ctx, nil)
	}()
	return p
}

// wait returns the image, or nil if there is none.
func (p *publisher) wait() *sdk.Image { return <-p.found }

// stop cancels the search and waits until it has ended.
func (p *publisher) stop() {
	p.cancel()
	<-p.found // the image, if wait has not received it
	<-p.found
}

// obtain returns an image of the runner other than gone. If there is none, it publishes one. It
// returns nil if that fails, or failed recently for another sandbox: then the runner can be
// uploaded instead.
func (p *publisher) obtain(ctx context.Context, gone *sdk.Image) *sdk.Image {
	work, cancel := context.WithDeadline(ctx, p.until)
	defer cancel()
	known := p.client.known
	select {
	case known.publishing <- struct{}{}: // of sandboxes created at the same time, one publishes
		defer func() { <-known.publishing }()
	case <-work.Done():
		return nil
	}
	if known.failed(p.runner.name) {
		return nil
	}
	if gone != nil && known.get(p.runner.name) == gone.ImageID {
		known.forget(p.runner.name)
	}
	id, _, err := known.getOrFetch(work, p.runner.name, func(ctx context.Context) (string, error) {
		image, err := p.client.Images.FromName(ctx, p.runner.name, nil)
		switch {
		case err == nil && (gone == nil || image.ImageID != gone.ImageID):
			return image.ImageID, nil
		case err != nil && !isNotFound(explain(err)):
			return "", explain(err)
		}
		return p.publish(ctx)
	})
	if err != nil {
		p.failed(ctx, err)
		return nil
	}
	return &sdk.Image{ImageID: id}
}

// failed remembers that no image of the runner can be used, unless the creation was cancelled.
func (p *publisher) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	p.client.known.put(p.runner.name, "")
	if p.cfg.Logger != nil {
		p.cfg.Logger.Warn("the runner is not published: every sandbox has to upload it", "error", err, "tried again after", cacheLifetime)
	}
}

// publish builds the image in a sandbox of its own and returns its ID.
func (p *publisher) publish(ctx context.Context) (id string, err error) {
	p.cfg.progress("the runner is uploaded, once for this environment of Modal")
	clean := config{
		Spec: primitives.Spec{Image: publishImage, Network: "none", Grace: p.cfg.Grace}, Provider: Provider{Timeout: publishLife},
	}
	tags := sandboxTags(clean, "")
	tags[tagKeep] = keepSoon // it is garbage as soon as its owner is dead
	box, err := p.client.makeSandbox(ctx, p.app, clean, tags)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, endSandbox(ctx, box), box.Detach()) }()
	// The command verifies the upload: the image's name contains the digest.
	finish := "chmod 0755 $0 && case $(sha256sum $0) in " + p.runner.digest() + "*) ;; *) exit 1; esac"
	if err := p.runner.upload(ctx, box, guestProgram, "sh", "-c", finish, guestProgram); err != nil {
		return "", err
	}
	image, err := box.SnapshotDirectory(ctx, runnerDir, nil)
	if err != nil {
		return "", explain(err)
	}
	return image.ImageID, explain(image.Publish(ctx, p.runner.name, nil))
}
