package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
)

// largeSource returns r as what is to go beside the stream, or false.
func (c *Client) largeSource(r io.Reader, opts primitives.WriteOptions) (io.Reader, *source) {
	b := c.bypass()
	if b == nil || opts.Append {
		return r, nil
	}
	src, ok := sourceOf(r)
	if !ok {
		return r, nil
	}
	tried, works := c.proof()
	if src.rewind == nil || src.size < b.MinSize || tried && !works {
		return src.Reader, nil
	}
	return src.Reader, &src
}

// writeBeside is WriteFile for what goes beside the stream.
func (c *Client) writeBeside(ctx context.Context, name string, src *source, opts primitives.WriteOptions) error {
	k, err := c.start(ctx, "write", name, opPlace, &writeRequest{name, opts})
	if err != nil {
		return err
	}
	defer k.end()
	var to stageReply
	if err := k.reply(&to); err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		c.forgetBypass()
		return c.upload(ctx, "write", name, requestFrame(opWrite, &writeRequest{name, opts}), src, nil)
	}
	if to.Name != "" {
		if err := k.stage(ctx, Staged(to), src); err != nil {
			return err
		}
	}
	// The rest, which is nothing or everything as a rule.
	return k.upload(src, nil)
}

// stage puts what it can of src beside the stream; what is left of it is to go over
// the stream.
func (k *call) stage(ctx context.Context, to Staged, src *source) error {
	tried, works := k.c.proof()
	if !tried {
		// Nothing is taken from the source before it is known that it arrives.
		var err error
		if works, err = k.put(ctx, to, bytes.NewReader([]byte{0}), 1, false); err != nil {
			return err
		}
		k.c.prove(works)
	}
	if !works {
		_, err := k.look(0, true)
		return err
	}
	staged, err := k.put(ctx, to, src, src.size, true)
	if err != nil || staged {
		return err
	}
	if err := src.rewind(); err != nil {
		return k.giveUp(err)
	}
	return nil
}

// put has a file put beside the stream, and reports whether the guest has found it.
// An error ends the call. last is for what is not only a trial.
func (k *call) put(ctx context.Context, to Staged, content io.Reader, size int64, last bool) (bool, error) {
	if !k.stop() {
		return false, k.giveUp(ctx.Err())
	}
	// Until the file is there, or is not written any more, the guest must not hear
	// that nobody wants it: it would be too early to remove it.
	wanted, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-k.c.done:
			cancel()
		case <-wanted.Done():
		}
	})
	in := &exactly{done: wanted.Err, r: content, left: size}
	err := k.c.cfg.Bypass.Put(wanted, to, in, size)
	cancel()
	watching.Wait()
	if cause := ctx.Err(); cause != nil {
		return false, k.giveUp(cause) // and r may block, which is its owner's business
	}
	failed := in.stop()
	k.stop = context.AfterFunc(ctx, k.abandon)
	switch {
	case failed != nil:
		return false, k.giveUp(failed)
	case k.c.Err() != nil:
		return false, k.failed(errEnded)
	case err == nil:
		return k.look(size, last)
	}
	k.c.log.Debug("a file does not go beside the stream", "error", err)
	if !last {
		return false, nil
	}
	return k.look(0, true)
}

// look asks the guest whether a file of this size has arrived. last ends the asking.
func (k *call) look(size int64, last bool) (bool, error) {
	err := k.sendMessage(frameItem, &lookRequest{size, last})
	if err != nil {
		return false, k.failed(err)
	}
	var reply lookReply
	err = k.reply(&reply)
	return reply.Found, err
}

// giveUp ends a call for a reason of its own, and waits for the guest to confirm
// that nothing is left.
func (k *call) giveUp(why error) error {
	k.abandon()
	for {
		kind, _, err := k.readMessage(maxReply)
		if err != nil || kind == frameError {
			return k.c.fail(k.op, k.target, why)
		}
	}
}

// fetch is Open for what may come beside the stream, which is known when the guest
// has opened it.
func (c *Client) fetch(ctx context.Context, name string, b *Bypass) (io.ReadCloser, error) {
	k, err := c.start(ctx, "open", name, opFetch, &fetchRequest{name, b.MinSize, b.Mounts})
	if err != nil {
		return nil, err
	}
	var reply fetchReply
	if err := k.reply(&reply); err != nil {
		k.end()
		if !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		c.forgetBypass()
		return c.download(ctx, "open", name, opOpen, &pathRequest{name})
	}
	d := &download{call: k, data: dataReader{f: k.framer, onError: k.reported}}
	if reply.Path == "" {
		return d, nil
	}
	body, err := b.Get(ctx, Located(reply))
	if err == nil {
		return &detour{download: d, body: body, left: reply.Size, size: reply.Size}, nil
	}
	c.log.Debug("a file does not come beside the stream", "error", err)
	if err := k.sendMessage(frameItem, &fetchRest{0}); err != nil {
		err = k.failed(err)
		k.end()
		return nil, err
	}
	return d, nil
}

// detour is a file that comes beside the stream, as far as it does. The rest, which
// may be nothing or what was added since it was opened, comes over the stream.
type detour struct {
	*download
	body    io.ReadCloser
	left    int64 // of body
	size    int64
	broken  bool // body is
	resumed bool // the stream goes on
	closing sync.Once
}

// Read reads the content to its end.
func (d *detour) Read(p []byte) (int, error) {
	if d.resumed || len(p) == 0 {
		return d.download.Read(p)
	}
	if d.left > 0 && !d.broken && !d.closed.Load() {
		n, err := d.body.Read(p[:min(int64(len(p)), d.left)])
		d.left -= int64(n)
		d.broken = err != nil
		if n > 0 || err == nil {
			return n, nil
		}
		d.c.log.Debug("a file does not go on beside the stream", "left", d.left, "error", err)
	}
	d.closeBody()
	d.resumed = true
	// If it fails the reading does, and knows better why.
	_ = d.sendMessage(frameItem, &fetchRest{d.size - d.left})
	return d.download.Read(p)
}

// WriteTo reads the content in larger pieces than io.Copy would.
func (d *detour) WriteTo(w io.Writer) (int64, error) { return copyAll(w, struct{ io.Reader }{d}) }

// Close lets go of the content, read or not.
func (d *detour) Close() error {
	err := d.download.Close()
	d.closeBody()
	return err
}

func (d *detour) closeBody() {
	d.closing.Do(func() { _ = d.body.Close() }) // what was read is what counts
}
