package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Open implements primitives.Files. The file comes from cat in a control shell, as
// the sandbox's user; the engine's archives would read it as root and would not
// see what is mounted inside.
func (p *plain) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	f, err := p.open(ctx, p.paths.Workspace, name)
	if err != nil {
		return nil, p.fail("open", name, err)
	}
	return f, nil
}

// open opens a file below root.
func (p *plain) open(ctx context.Context, root, name string) (*plainFile, error) {
	if err := checkPath(ctx, name); err != nil {
		return nil, err
	}
	s, err := p.takeShell(ctx, "")
	if err != nil {
		return nil, err
	}
	f := &plainFile{
		body: &answerReader{s: s}, cancelled: ctx.Err,
		fail: func(err error) error { return p.fail("read", name, err) },
		lost: func(err error) error { return p.explain(ctx, err) },
		keep: func() { p.giveShell(s) }, drop: func() { p.dropShell(ctx, s) },
	}
	f.stop = context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	err = s.send(shellWords([]string{"fetch", root, name}))
	var head [2]byte
	if err == nil {
		_, err = io.ReadFull(f.body, head[:])
	}
	if err == nil && string(head[:]) == "+ " {
		return f, nil
	}
	if f.body.done {
		status := f.body.status
		return nil, errors.Join(statusError(status, ""), f.Close())
	}
	_ = f.Close()
	return nil, p.explain(ctx, err)
}

// plainFile is a file that is being read. Its shell is its own until it is closed.
type plainFile struct {
	body      *answerReader
	cancelled func() error          // the error of the context of Open, which covers the reading
	lost      func(err error) error // explains why the shell does not answer
	fail      func(err error) error // says where
	keep      func()                // gives the shell back
	drop      func()                // ends it
	stop      func() bool           // from the context
	closed    bool
	err       error
}

func (f *plainFile) Read(b []byte) (int, error) {
	switch {
	case f.closed:
		return 0, fs.ErrClosed
	case f.err != nil:
		return 0, f.err
	}
	n, err := f.body.Read(b)
	switch {
	case err == nil:
		return n, nil
	case !f.body.done || f.cancelled() != nil:
		f.err = f.fail(f.lost(err))
	case f.body.status != 0:
		f.err = f.fail(statusError(f.body.status, ""))
	default:
		f.err = io.EOF
	}
	return n, f.err
}

func (f *plainFile) Close() error {
	if f.closed {
		return nil
	}
	f.closed = true
	if f.stop() && f.body.done {
		f.keep()
	} else {
		f.drop()
	}
	return nil
}

// checkPath refuses what no path can be.
func checkPath(ctx context.Context, name string) error {
	if strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: the path contains a NUL byte", fs.ErrInvalid)
	}
	return ctx.Err()
}

// onPath has a control shell do something with a path.
func (p *plain) onPath(ctx context.Context, request, name string, words ...string) (string, error) {
	if err := checkPath(ctx, name); err != nil {
		return "", err
	}
	return p.ask(ctx, "", append([]string{request, p.paths.Workspace, name}, words...)...)
}

// WriteFile implements primitives.Files.
func (p *plain) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	return p.fail("write", name, p.write(ctx, p.paths.Workspace, name, r, opts))
}

// blockSize is how much of a file is sent at a time: for each block the container
// starts a program.
const blockSize = 256 << 10

// write writes a file below root.
func (p *plain) write(ctx context.Context, root, name string, r io.Reader, opts primitives.WriteOptions) (err error) {
	if err := checkPath(ctx, name); err != nil {
		return err
	}
	how, mode := "replace", ""
	switch {
	case opts.Append:
		how = "append"
	case opts.Exclusive:
		how = "new"
	}
	if opts.Mode != 0 {
		mode = strconv.FormatUint(uint64(opts.Mode.Perm()), 8)
	}
	if opts.IfRevision != "" {
		p.committing.Lock()
		defer p.committing.Unlock()
	}
	s, err := p.takeShell(ctx, "")
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	body := &answerReader{s: s}
	err = s.send(shellWords([]string{"store", root, name, how, mode, opts.IfRevision}))
	var head [2]byte
	if err == nil {
		_, err = io.ReadFull(body, head[:])
	}
	var source error
	if err == nil {
		source, err = s.sendBlocks(ctx, r)
	}
	var text []byte
	if err == nil || body.done {
		rest, rerr := io.ReadAll(io.LimitReader(body, maxFirstLine))
		text, err = append(head[:], rest...), rerr
	}
	if !stop() || !body.done {
		_ = s.conn.Close() // the shell takes away what it has written; it must not be killed
		return errors.Join(source, p.explain(ctx, err))
	}
	p.giveShell(s)
	if source != nil {
		return source
	}
	return statusError(body.status, strings.TrimPrefix(string(text), "+ "))
}

// sendBlocks sends what it reads from r as pass in plain/control.sh takes it. An
// error of r ends the request without an end of the blocks.
func (s *shell) sendBlocks(ctx context.Context, r io.Reader) (source, err error) {
	buf := make([]byte, 0, 4<<10)
	for {
		if len(buf) == cap(buf) && cap(buf) < blockSize {
			buf = append(make([]byte, 0, blockSize), buf...)
		}
		n, rerr := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if cerr := ctx.Err(); cerr != nil {
			rerr = cerr
		}
		ended := errors.Is(rerr, io.EOF)
		if rerr != nil && !ended {
			return rerr, s.send("stop")
		}
		if len(buf) == blockSize || ended && len(buf) > 0 {
			if err := s.send(strconv.Itoa(len(buf))); err != nil {
				return nil, err
			}
			if _, err := s.conn.Write(buf); err != nil {
				return nil, err
			}
			buf = buf[:0]
		}
		if ended {
			return nil, s.send("0")
		}
	}
}

// WriteFiles implements primitives.BatchWriter.
func (p *plain) WriteFiles(ctx context.Context, files []primitives.File) ([]error, error) {
	if err := p.usable(); err != nil {
		return nil, p.fail("write", "", err)
	}
	type filesOnly struct{ primitives.Files }
	return primitives.WriteFiles(ctx, filesOnly{p}, files)
}

// Mkdir implements primitives.Files.
func (p *plain) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	if mode == 0 {
		mode = 0o755
	}
	_, err := p.onPath(ctx, "make", name, strconv.FormatUint(uint64(mode.Perm()), 8))
	return p.fail("mkdir", name, err)
}

// Remove implements primitives.Files.
func (p *plain) Remove(ctx context.Context, name string, recursive bool) error {
	how := ""
	if recursive {
		how = "1"
	}
	_, err := p.onPath(ctx, "drop", name, append([]string{how}, p.paths.All()...)...)
	return p.fail("remove", name, err)
}

// Move implements primitives.Files.
func (p *plain) Move(ctx context.Context, from, to string) error {
	err := checkPath(ctx, to)
	if err == nil {
		_, err = p.onPath(ctx, "shift_to", from, append([]string{to}, p.paths.All()...)...)
	}
	return p.fail("move", from, err)
}
