package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// fake is a small sandbox: commands by os/exec, files below one directory. It leaves out the
// behavior that the guest does not change, which the engine's own contract test covers.
type fake struct {
	dir    string
	events chan primitives.WatchEvent

	mu         sync.Mutex
	procs      map[*fakeProcess]bool
	terminated bool
	// onWrite, if set, replaces WriteFile.
	onWrite func(ctx context.Context, name string, r io.Reader) error
}

func newFake(t testing.TB) *fake {
	t.Helper()
	dir := t.TempDir()
	for _, d := range primitives.PathsIn(dir).All() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &fake{dir: dir, events: make(chan primitives.WatchEvent), procs: make(map[*fakeProcess]bool)}
}

func (f *fake) running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.procs)
}

func (f *fake) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(f.Paths().Workspace, name)
}

func fault(op, target string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.EISDIR) {
		err = errors.Join(primitives.ErrIsDirectory, err)
	}
	return &primitives.Error{Op: op, Backend: "fake", Target: target, Err: err}
}

func (f *fake) ID() string              { return "fake-\xff-1" }
func (f *fake) Paths() primitives.Paths { return primitives.PathsIn(f.dir) }
func (f *fake) Close() error            { return nil }
func (f *fake) Capabilities() primitives.Capabilities {
	return primitives.Capabilities{OS: "linux", Arch: "amd64", TreeKill: primitives.TreeKillGroup}
}

func (f *fake) Poll(context.Context) (primitives.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.terminated {
		return primitives.State{Status: primitives.StatusTerminated}, nil
	}
	return primitives.State{Status: primitives.StatusRunning}, nil
}

func (f *fake) Terminate(context.Context) (primitives.TerminateReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.terminated = true
	return primitives.TerminateReport{Killed: []primitives.KilledProcess{{PID: 7, Command: "x"}}}, nil
}

func (f *fake) Open(_ context.Context, name string) (io.ReadCloser, error) {
	file, err := os.Open(f.path(name))
	if err != nil {
		return nil, fault("open", name, err)
	}
	return file, nil
}

func (f *fake) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	if f.onWrite != nil {
		return f.onWrite(ctx, name, r)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return fault("write", name, err)
	}
	if opts.Exclusive {
		if _, err := os.Lstat(f.path(name)); err == nil {
			return fault("write", name, fs.ErrExist)
		}
	}
	return fault("write", name, os.WriteFile(f.path(name), b, 0o644))
}

func (f *fake) Stat(_ context.Context, name string) (primitives.FileInfo, error) {
	i, err := os.Lstat(f.path(name))
	if err != nil {
		return primitives.FileInfo{}, fault("stat", name, err)
	}
	return primitives.FileInfo{Path: name, Size: i.Size(), Mode: i.Mode(), ModTime: i.ModTime()}, nil
}

func (f *fake) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	entries, err := os.ReadDir(f.path(dir))
	if err != nil {
		return nil, fault("list", dir, err)
	}
	var infos []primitives.FileInfo
	for _, e := range entries {
		if opts.Limit > 0 && len(infos) == opts.Limit {
			return infos, fault("list", dir, primitives.ErrLimit)
		}
		i, err := f.Stat(ctx, filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		i.Path = e.Name()
		infos = append(infos, i)
	}
	return infos, nil
}

func (f *fake) Mkdir(_ context.Context, name string, mode fs.FileMode) error {
	return fault("mkdir", name, os.MkdirAll(f.path(name), max(mode, 0o700)))
}

func (f *fake) Remove(_ context.Context, name string, _ bool) error {
	return fault("remove", name, os.Remove(f.path(name)))
}

func (f *fake) Move(_ context.Context, from, to string) error {
	return fault("move", from, os.Rename(f.path(from), f.path(to)))
}

func (f *fake) Watch(ctx context.Context, dir string, _ primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
	if _, err := os.Stat(f.path(dir)); err != nil {
		return nil, fault("watch", dir, err)
	}
	return func(yield func(primitives.WatchEvent, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-f.events:
				if !ok {
					yield(primitives.WatchEvent{}, fault("watch", dir, fs.ErrNotExist))
					return
				}
				if !yield(e, nil) {
					return
				}
			}
		}
	}, nil
}

func (f *fake) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
	if err := cmd.Check(); err != nil {
		return nil, fault("exec", program(cmd), err)
	}
	c := exec.CommandContext(ctx, cmd.Args[0], cmd.Args[1:]...)
	c.Env = append(os.Environ(), cmd.Env...)
	c.Dir = f.Paths().Workspace
	p := &fakeProcess{f: f, cmd: c, done: make(chan struct{}), ctx: ctx}
	var childIn, childOut, childErr *os.File
	var err error
	if childIn, p.in, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.out, childOut, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.err, childErr, err = os.Pipe(); err != nil {
		return nil, err
	}
	c.Stdin, c.Stdout, c.Stderr = childIn, childOut, childErr
	err = c.Start()
	_ = errors.Join(childIn.Close(), childOut.Close(), childErr.Close())
	if err != nil {
		_ = errors.Join(p.in.Close(), p.out.Close(), p.err.Close())
		return nil, fault("exec", cmd.Args[0], errors.Join(primitives.ErrCommandNotFound, err))
	}
	if !cmd.Stdin {
		_ = p.in.Close()
	}
	f.mu.Lock()
	f.procs[p] = true
	f.mu.Unlock()
	go p.wait()
	return p, nil
}

// fakeProcess is a process of a fake.
type fakeProcess struct {
	f            *fake
	cmd          *exec.Cmd
	in, out, err *os.File
	done         chan struct{}
	ctx          context.Context //nolint:containedctx // to tell a cancelled process
}

func (p *fakeProcess) wait() {
	_ = p.cmd.Wait()
	p.f.mu.Lock()
	delete(p.f.procs, p)
	p.f.mu.Unlock()
	close(p.done)
}

func (p *fakeProcess) ID() string            { return "proc" }
func (p *fakeProcess) Stdin() io.WriteCloser { return p.in }
func (p *fakeProcess) Stdout() io.ReadCloser { return p.out }
func (p *fakeProcess) Stderr() io.ReadCloser { return p.err }
func (p *fakeProcess) Resize(context.Context, primitives.TerminalSize) error {
	return fault("resize", "", errors.ErrUnsupported)
}

func (p *fakeProcess) Signal(_ context.Context, sig primitives.Signal) error {
	select {
	case <-p.done:
		return fault("signal", "", os.ErrProcessDone)
	default:
	}
	return fault("signal", "", p.cmd.Process.Signal(map[primitives.Signal]os.Signal{"TERM": syscall.SIGTERM}[sig]))
}

func (p *fakeProcess) Wait(ctx context.Context) (primitives.ExitStatus, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return primitives.ExitStatus{}, fault("wait", "", ctx.Err())
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case p.ctx.Err() != nil:
		return primitives.ExitStatus{Code: 137, Signal: "KILL", Reason: primitives.ReasonCancelled}, nil
	case status.Signaled():
		return primitives.ExitStatus{Code: 128 + int(status.Signal()), Signal: "TERM", Reason: primitives.ReasonSignaled}, nil
	}
	return primitives.ExitStatus{Code: status.ExitStatus(), Reason: primitives.ReasonExited}, nil
}

func (p *fakeProcess) Close() error {
	_ = p.cmd.Process.Kill()
	<-p.done
	_ = errors.Join(p.in.Close(), p.out.Close(), p.err.Close())
	return nil
}

// refusing is a sandbox whose operations touch nothing.
type refusing struct {
	primitives.EnvironmentPrimitive
}

func (refusing) ID() string                            { return "refusing" }
func (refusing) Paths() primitives.Paths               { return primitives.PathsIn("/nowhere") }
func (refusing) Capabilities() primitives.Capabilities { return primitives.Capabilities{} }
func (refusing) Poll(context.Context) (primitives.State, error) {
	return primitives.State{Status: primitives.StatusRunning}, nil
}

func (refusing) Terminate(context.Context) (primitives.TerminateReport, error) {
	return primitives.TerminateReport{}, errors.ErrUnsupported
}

func (refusing) Open(context.Context, string) (io.ReadCloser, error) { return nil, fs.ErrNotExist }

func (refusing) WriteFile(_ context.Context, _ string, r io.Reader, _ primitives.WriteOptions) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func (refusing) Stat(context.Context, string) (primitives.FileInfo, error) {
	return primitives.FileInfo{}, fs.ErrNotExist
}

func (refusing) List(context.Context, string, primitives.ListOptions) ([]primitives.FileInfo, error) {
	return nil, fs.ErrNotExist
}
func (refusing) Mkdir(context.Context, string, fs.FileMode) error { return fs.ErrPermission }
func (refusing) Remove(context.Context, string, bool) error       { return fs.ErrPermission }
func (refusing) Move(context.Context, string, string) error       { return fs.ErrPermission }
func (refusing) Exec(context.Context, primitives.Command) (primitives.Process, error) {
	return nil, fs.ErrPermission
}

func (refusing) Watch(context.Context, string, primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
	return nil, fs.ErrNotExist
}
