package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	sdk "github.com/modal-labs/modal-client/go"
)

// runner is the program that is put into sandboxes.
type runner struct {
	file string
	name string // of the image that holds it
}

// imageName begins the names of the images that hold the runner; the rest is its
// content.
const imageName = "agentenv-runner:"

// readRunner looks at the runner.
func readRunner(file string) (*runner, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("runner: name the envrunner program for linux/amd64: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, fmt.Errorf("runner: %w", err)
	}
	return &runner{file: file, name: imageName + hex.EncodeToString(sum.Sum(nil)[:20])}, nil
}

// Runner returns where in the sandbox a runner of this machine lies; empty if it is
// not the one that the sandbox was made with, or somebody there may not run it.
func (s *Sandbox) Runner(file string) string {
	if s.program == nil || s.program.file != file || s.cfg.User != "" {
		return ""
	}
	return guestProgram
}

// search looks for the image of a runner beside other work.
type search struct {
	cancel context.CancelFunc
	found  chan *sdk.Image
	result *sdk.Image
}

// find starts to look for the image that an earlier sandbox has left.
func (r *runner) find(ctx context.Context, c *client) *search {
	ctx, cancel := context.WithCancel(ctx)
	s := &search{cancel: cancel, found: make(chan *sdk.Image)}
	go func() {
		defer close(s.found)
		// Without one the runner is uploaded: no error is worth more.
		if image, err := c.Images.FromName(ctx, r.name, nil); err == nil {
			s.found <- image
		}
	}()
	return s
}

// image waits for the result; nil is none.
func (s *search) image() *sdk.Image {
	if image, ok := <-s.found; ok {
		s.result = image
	}
	return s.result
}

func (s *search) stop() {
	s.cancel()
	s.image()
	s.image() // until it is closed
}

// install puts the runner into a sandbox. It returns how to do it again if what
// was mounted cannot be run; nil if nothing was mounted.
func (r *runner) install(ctx context.Context, box *sdk.Sandbox, image *sdk.Image, cfg Config) (again func(context.Context) error, err error) {
	upload := func(ctx context.Context) error {
		cfg.progress("the runner is uploaded, once for this environment of Modal")
		return r.upload(ctx, box)
	}
	if image != nil {
		err := box.MountImage(ctx, runnerDir, image, nil)
		if err == nil {
			return func(ctx context.Context) error {
				return errors.Join(explain(box.UnmountImage(ctx, runnerDir, nil)), upload(ctx))
			}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, upload(ctx)
}

// upload writes the runner.
func (r *runner) upload(ctx context.Context, box *sdk.Sandbox) error {
	if err := box.Filesystem.CopyFromLocal(ctx, r.file, guestProgram, nil); err != nil {
		return fmt.Errorf("copy the runner into the sandbox: %w", explain(err))
	}
	p, err := box.Exec(ctx, []string{"chmod", "0755", guestProgram}, &sdk.SandboxExecParams{Stdout: sdk.Ignore, Stderr: sdk.Ignore})
	if err != nil {
		return fmt.Errorf("make the runner executable: %w", explain(err))
	}
	code, err := p.Wait(ctx, nil)
	if err != nil {
		return fmt.Errorf("make the runner executable: %w", explain(err))
	}
	if code != 0 {
		return fmt.Errorf("%w: image: take one that has the chmod command, which makes the runner executable: it exits with %d", fs.ErrInvalid, code)
	}
	return nil
}

// keep makes an image of an uploaded runner for sandboxes to come.
func (r *runner) keep(ctx context.Context, box *sdk.Sandbox) error {
	image, err := box.SnapshotDirectory(ctx, runnerDir, nil)
	if err != nil {
		return err
	}
	return image.Publish(ctx, r.name, nil)
}
