package primitivestest

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"net"

	"github.com/agentenv-dev/agentenv/primitives"
)

// faults replaces methods of a sandbox.
type faults struct {
	primitives.EnvironmentPrimitive
	exec      func(ctx context.Context, cmd primitives.Command) (primitives.Process, error)
	open      func(ctx context.Context, name string) (io.ReadCloser, error)
	write     func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error
	batch     func(ctx context.Context, files []primitives.File) ([]error, error)
	stat      func(ctx context.Context, name string) (primitives.FileInfo, error)
	list      func(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error)
	mkdir     func(ctx context.Context, name string, mode fs.FileMode) error
	remove    func(ctx context.Context, name string, recursive bool) error
	move      func(ctx context.Context, from, to string) error
	watch     func(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error)
	poll      func(ctx context.Context) (primitives.State, error)
	terminate func(ctx context.Context) (primitives.TerminateReport, error)
	close     func() error
	id        func() string
	can       func() primitives.Capabilities
	pack      func(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error)
	unpack    func(ctx context.Context, dir string, r io.Reader) error
	reattach  func(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error)
	listen    func(ctx context.Context, network, address string) (net.Listener, error)
	dial      dialFunc
}

// whole returns faults that call the methods of p.
func whole(p primitives.EnvironmentPrimitive) *faults {
	return &faults{
		EnvironmentPrimitive: p,
		exec:                 p.Exec, open: p.Open, write: p.WriteFile, stat: p.Stat, list: p.List, mkdir: p.Mkdir,
		remove: p.Remove, move: p.Move, watch: p.Watch, poll: p.Poll, terminate: p.Terminate, close: p.Close, id: p.ID, can: p.Capabilities,
		pack: func(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
			return primitives.Pack(ctx, p, dir, opts)
		},
		batch: func(ctx context.Context, files []primitives.File) ([]error, error) {
			return primitives.WriteFiles(ctx, p, files)
		},
		unpack: func(ctx context.Context, dir string, r io.Reader) error { return primitives.Unpack(ctx, p, dir, r) },
		reattach: func(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error) {
			return primitives.Reattach(ctx, p, id, from)
		},
		listen: func(ctx context.Context, network, address string) (net.Listener, error) {
			return primitives.Listen(ctx, p, network, address)
		},
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return primitives.Dial(ctx, p, network, address)
		},
	}
}

// wrapped is a sandbox with faults.
type wrapped struct{ *faults }

func (w wrapped) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
	return w.exec(ctx, cmd)
}

func (w wrapped) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return w.open(ctx, name)
}

func (w wrapped) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	return w.write(ctx, name, r, opts)
}

func (w wrapped) WriteFiles(ctx context.Context, files []primitives.File) ([]error, error) {
	return w.batch(ctx, files)
}

func (w wrapped) Stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	return w.stat(ctx, name)
}

func (w wrapped) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	return w.list(ctx, dir, opts)
}

func (w wrapped) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	return w.mkdir(ctx, name, mode)
}

func (w wrapped) Remove(ctx context.Context, name string, recursive bool) error {
	return w.remove(ctx, name, recursive)
}
func (w wrapped) Move(ctx context.Context, from, to string) error { return w.move(ctx, from, to) }

func (w wrapped) Watch(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
	return w.watch(ctx, dir, opts)
}
func (w wrapped) Poll(ctx context.Context) (primitives.State, error) { return w.poll(ctx) }

func (w wrapped) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	return w.terminate(ctx)
}
func (w wrapped) Close() error                          { return w.close() }
func (w wrapped) ID() string                            { return w.id() }
func (w wrapped) Capabilities() primitives.Capabilities { return w.can() }

func (w wrapped) Pack(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
	return w.pack(ctx, dir, opts)
}

func (w wrapped) Unpack(ctx context.Context, dir string, r io.Reader) error {
	return w.unpack(ctx, dir, r)
}

func (w wrapped) Reattach(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error) {
	return w.reattach(ctx, id, from)
}

func (w wrapped) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return w.listen(ctx, network, address)
}

func (w wrapped) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return w.dial(ctx, network, address)
}

// broken returns the wrapper of a mutant.
func broken(fault func(f *faults)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
		f := whole(p)
		fault(f)
		return wrapped{f}
	}
}

// brokenCommand changes every command before it is started.
func brokenCommand(change func(cmd *primitives.Command)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
			change(&cmd)
			return f.Exec(ctx, cmd)
		}
	})
}

// brokenProcess changes every started process.
func brokenProcess(change func(p *processFaults)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
			p, err := f.Exec(ctx, cmd)
			if err != nil {
				return nil, err
			}
			return faultyProcess(p, change), nil
		}
	})
}

// brokenStatus changes every exit status.
func brokenStatus(change func(s *primitives.ExitStatus)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return brokenProcess(func(p *processFaults) {
		p.wait = func(ctx context.Context) (primitives.ExitStatus, error) {
			s, err := p.Wait(ctx)
			change(&s)
			return s, err
		}
	})
}

// processFaults replaces methods of a process.
type processFaults struct {
	primitives.Process
	wait   func(ctx context.Context) (primitives.ExitStatus, error)
	signal func(ctx context.Context, sig primitives.Signal) error
	resize func(ctx context.Context, size primitives.TerminalSize) error
	close  func() error
	stdin  io.WriteCloser
	stdout io.ReadCloser
}

func faultyProcess(p primitives.Process, change func(p *processFaults)) primitives.Process {
	f := &processFaults{Process: p, wait: p.Wait, signal: p.Signal, resize: p.Resize, close: p.Close, stdin: p.Stdin(), stdout: p.Stdout()}
	change(f)
	return wrappedProcess{f}
}

type wrappedProcess struct{ *processFaults }

func (w wrappedProcess) Wait(ctx context.Context) (primitives.ExitStatus, error) { return w.wait(ctx) }

func (w wrappedProcess) Signal(ctx context.Context, sig primitives.Signal) error {
	return w.signal(ctx, sig)
}

func (w wrappedProcess) Resize(ctx context.Context, size primitives.TerminalSize) error {
	return w.resize(ctx, size)
}
func (w wrappedProcess) Close() error          { return w.close() }
func (w wrappedProcess) Stdin() io.WriteCloser { return w.stdin }
func (w wrappedProcess) Stdout() io.ReadCloser { return w.stdout }
