package modal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
)

// runner is the program that serves as the guest in sandboxes.
type runner struct {
	file string
	name string // of the image that holds it
}

// imageName is the prefix of the names of images that hold the runner; the digest of its
// content follows. Older versions published files of a user's sandbox under "agentenv-runner:":
// those images are never used.
const imageName = "agentenv-published-runner:"

// readRunner returns the runner in file, and computes its digest unless it is cached.
func readRunner(file string) (*runner, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("runner: %w; name the envrunner program for linux/amd64", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("runner: %w", err)
	}
	name := digests.get(file, info)
	if name == "" {
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return nil, fmt.Errorf("runner: %w", err)
		}
		name = imageName + hex.EncodeToString(sum.Sum(nil)[:20])
		digests.put(file, info, name)
	}
	return &runner{file: file, name: name}, nil
}

// digest returns the first 20 bytes of the SHA-256 of the runner's content, in hexadecimal.
func (r *runner) digest() string { return strings.TrimPrefix(r.name, imageName) }

// digested caches the image names of files.
type digested struct {
	mu    sync.Mutex
	files map[string]digestedFile
}

type digestedFile struct {
	info fs.FileInfo
	name string
}

// digests caches the digests of runners for all sandboxes of the process: hashing a runner
// takes longer than most calls that create a sandbox.
var digests = digested{files: map[string]digestedFile{}}

const (
	// minFileAge is how long a file must have been unchanged before its modification time proves
	// that it has not changed since: file systems have coarse clocks.
	minFileAge = 2 * time.Second
	// maxDigests is the capacity of the cache.
	maxDigests = 16
)

// get returns the cached name of an unchanged file, or "".
func (d *digested) get(file string, info fs.FileInfo) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	known, ok := d.files[file]
	if !ok || !os.SameFile(known.info, info) || known.info.Size() != info.Size() || !known.info.ModTime().Equal(info.ModTime()) {
		return ""
	}
	return known.name
}

// put caches the name of a file, unless the file was just written.
func (d *digested) put(file string, info fs.FileInfo, name string) {
	if time.Since(info.ModTime()) < minFileAge {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.files) >= maxDigests {
		clear(d.files)
	}
	d.files[file] = digestedFile{info, name}
}

// install puts the runner into a sandbox: it mounts the published image, or uploads the runner
// if that fails. again replaces a mounted runner that cannot be run by an upload; it is nil if
// nothing is mounted.
func (r *runner) install(ctx context.Context, p *publisher, box *sdk.Sandbox) (again func(context.Context) error, err error) {
	upload := func(ctx context.Context) error {
		p.cfg.progress("the runner is uploaded into this sandbox")
		return r.upload(ctx, box, guestProgram, "chmod", "0755", guestProgram)
	}
	image := p.wait()
	if image != nil && box.MountImage(ctx, runnerDir, image, nil) != nil && ctx.Err() == nil {
		// Modal has no specific error for an image that no longer exists.
		if image = p.obtain(ctx, image); image != nil {
			if err := box.MountImage(ctx, runnerDir, image, nil); err != nil {
				p.failed(ctx, explain(err))
				image = nil
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case image == nil:
		return nil, upload(ctx)
	}
	return func(ctx context.Context) error {
		return errors.Join(explain(box.UnmountImage(ctx, runnerDir, nil)), upload(ctx))
	}, nil
}

// installBeside uploads the runner into a sandbox that has the runner of another release. It
// returns the path there, which contains the digest. The file appears atomically, since another
// program may upload and run it at the same time.
func (r *runner) installBeside(ctx context.Context, box *sdk.Sandbox) (program string, err error) {
	program = guestDir + "/envrunner-" + r.digest()
	uploaded := program + "." + rand.Text()
	return program, r.upload(ctx, box, uploaded, "sh", "-c", "chmod 0755 $0 && mv -f $0 $1", uploaded, program)
}

// upload writes the runner to a path of the sandbox. The command finish makes it executable.
func (r *runner) upload(ctx context.Context, box *sdk.Sandbox, to string, finish ...string) error {
	if err := box.Filesystem.CopyFromLocal(ctx, r.file, to, nil); err != nil {
		return fmt.Errorf("copy the runner into the sandbox: %w", explain(err))
	}
	p, err := box.Exec(ctx, finish, &sdk.SandboxExecParams{Stdout: sdk.Ignore, Stderr: sdk.Ignore})
	if err != nil {
		return fmt.Errorf("make the runner executable: %w", explain(err))
	}
	code, err := p.Wait(ctx, nil)
	if err != nil {
		return fmt.Errorf("make the runner executable: %w", explain(err))
	}
	if code != 0 {
		return fmt.Errorf("%w: image: its %s command, which makes the runner executable, exits with %d; choose an image that has it", fs.ErrInvalid, finish[0], code)
	}
	return nil
}
