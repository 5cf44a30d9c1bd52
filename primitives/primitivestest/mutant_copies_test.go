package primitivestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// model is a local sandbox that also supports snapshots and pauses, as far as the cases can
// see. It breaks the contract in the way that fault names.
type model struct {
	wrapped
	fault string
	shelf *shelf

	mu     sync.Mutex
	paused bool
	procs  []primitives.Process
	copies []*model
}

// shelf holds the snapshots, and ends their sandboxes with the test.
type shelf struct {
	t    *testing.T
	dir  string
	mu   sync.Mutex
	kept map[string]*local.Sandbox
}

// model returns a model of p with a fault. It ends p with the test.
func (s *shelf) model(p primitives.EnvironmentPrimitive, fault string) *model {
	made := p.(*local.Sandbox)
	s.t.Cleanup(func() { endLocal(s.t, s.dir, made) })
	m := &model{wrapped: wrapped{whole(p)}, fault: fault, shelf: s}
	f := m.faults
	f.can = func() primitives.Capabilities {
		c := p.Capabilities()
		c.Snapshot, c.Pause = true, true
		return c
	}
	f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
		if err := m.gate("exec"); err != nil {
			return nil, err
		}
		proc, err := p.Exec(ctx, cmd)
		m.mu.Lock()
		defer m.mu.Unlock()
		if err == nil && !cmd.Durable {
			m.procs = append(m.procs, proc)
		}
		return proc, err
	}
	m.gateFiles(p)
	return m
}

// gateFiles makes a paused model refuse all calls except those about commands.
func (m *model) gateFiles(p primitives.EnvironmentPrimitive) {
	f := m.faults
	f.open = func(ctx context.Context, name string) (io.ReadCloser, error) {
		return gated(m, "open", func() (io.ReadCloser, error) { return p.Open(ctx, name) })
	}
	f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
		return errors.Join(m.gate("write"), m.unlessPaused(func() error { return p.WriteFile(ctx, name, r, opts) }))
	}
	f.batch = func(ctx context.Context, files []primitives.File) ([]error, error) {
		return gated(m, "write files", func() ([]error, error) { return primitives.WriteFiles(ctx, p, files) })
	}
	f.stat = func(ctx context.Context, name string) (primitives.FileInfo, error) {
		return gated(m, "stat", func() (primitives.FileInfo, error) { return p.Stat(ctx, name) })
	}
	f.list = func(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
		return gated(m, "list", func() ([]primitives.FileInfo, error) { return p.List(ctx, dir, opts) })
	}
	f.mkdir = func(ctx context.Context, name string, mode fs.FileMode) error {
		return errors.Join(m.gate("mkdir"), m.unlessPaused(func() error { return p.Mkdir(ctx, name, mode) }))
	}
	f.remove = func(ctx context.Context, name string, recursive bool) error {
		return errors.Join(m.gate("remove"), m.unlessPaused(func() error { return p.Remove(ctx, name, recursive) }))
	}
	f.move = func(ctx context.Context, from, to string) error {
		return errors.Join(m.gate("move"), m.unlessPaused(func() error { return p.Move(ctx, from, to) }))
	}
	f.watch = func(ctx context.Context, dir string, opts primitives.WatchOptions) (eventSeq, error) {
		return gated(m, "watch", func() (eventSeq, error) { return p.Watch(ctx, dir, opts) })
	}
	f.pack = func(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
		return gated(m, "pack", func() (io.ReadCloser, error) { return primitives.Pack(ctx, p, dir, opts) })
	}
	f.unpack = func(ctx context.Context, dir string, r io.Reader) error {
		return errors.Join(m.gate("unpack"), m.unlessPaused(func() error { return primitives.Unpack(ctx, p, dir, r) }))
	}
	f.reattach = func(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error) {
		return gated(m, "reattach", func() (primitives.Process, error) { return primitives.Reattach(ctx, p, id, from) })
	}
}

func gated[T any](m *model, op string, do func() (T, error)) (T, error) {
	if err := m.gate(op); err != nil {
		var zero T
		return zero, err
	}
	return do()
}

func (m *model) isPaused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paused && m.fault != "calls work while paused"
}

func (m *model) gate(op string) error {
	if m.isPaused() {
		return &primitives.Error{Op: op, Err: primitives.ErrUnavailable}
	}
	return nil
}

func (m *model) unlessPaused(do func() error) error {
	if m.isPaused() {
		return nil
	}
	return do()
}

func (m *model) Capabilities() primitives.Capabilities { return m.can() }

// Fork copies with the local sandbox's own Fork.
func (m *model) Fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	switch {
	case m.fault == "Fork of none is no error" && n < 1:
		return nil, nil
	case m.fault == "Fork ignores its context":
		ctx = context.WithoutCancel(ctx)
	case m.fault == "a paused sandbox cannot be copied" && m.isPaused():
		return nil, m.gate("fork")
	}
	made, err := primitives.Fork(ctx, m.EnvironmentPrimitive, n)
	for i, p := range made {
		c := m.shelf.model(p, m.fault)
		m.spoil(ctx, c)
		made[i] = c
		m.mu.Lock()
		m.copies = append(m.copies, c)
		m.mu.Unlock()
	}
	return made, err
}

// spoil applies the fault to a copy.
func (m *model) spoil(ctx context.Context, c *model) {
	switch m.fault {
	case "a copy lacks links":
		removeLinks(ctx, c)
	case "a copy shares the original's files":
		write := m.write
		m.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
			b, err := io.ReadAll(r)
			return errors.Join(err, write(ctx, name, bytes.NewReader(b), opts), c.WriteFile(ctx, name, bytes.NewReader(b), opts))
		}
	case "a copy has settings of its own":
		exec := c.exec
		c.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
			cmd.Env = append(cmd.Env, "A_COPY=1") // the first of the list
			return exec(ctx, cmd)
		}
	case "Fork ends the original's processes":
		m.signal(ctx, primitives.SIGKILL)
	case "a copy knows the original's durable commands":
		c.reattach = m.reattach
	}
}

func removeLinks(ctx context.Context, p primitives.EnvironmentPrimitive) {
	infos, err := p.List(ctx, ".", primitives.ListOptions{Depth: -1})
	for _, i := range infos {
		if i.Mode&fs.ModeSymlink != 0 {
			err = errors.Join(err, p.Remove(ctx, i.Path, false))
		}
	}
	if err != nil {
		panic(err)
	}
}

// Snapshot saves a copy of the sandbox.
func (m *model) Snapshot(ctx context.Context) (string, error) {
	if m.fault == "Snapshot ignores its context" {
		ctx = context.WithoutCancel(ctx)
	}
	made, err := primitives.Fork(ctx, m.EnvironmentPrimitive, 1)
	if err != nil {
		return "", err
	}
	switch m.fault {
	case "a snapshot lacks links":
		removeLinks(ctx, made[0])
	case "Snapshot ends what runs":
		m.signal(ctx, primitives.SIGKILL)
	}
	m.shelf.mu.Lock()
	defer m.shelf.mu.Unlock()
	id := fmt.Sprint("snapshot-", len(m.shelf.kept))
	m.shelf.kept[id] = made[0].(*local.Sandbox)
	m.shelf.t.Cleanup(func() { endLocal(m.shelf.t, m.shelf.dir, made[0].(*local.Sandbox)) })
	return id, nil
}

// signal sends a signal to all commands; those that have exited ignore it.
func (m *model) signal(ctx context.Context, sig primitives.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.procs {
		_ = p.Signal(ctx, sig)
	}
}

func (m *model) Pause(ctx context.Context) error { return m.freeze(ctx, true, primitives.SIGSTOP) }

func (m *model) Resume(ctx context.Context) error {
	if m.fault == "Resume does nothing" {
		return nil
	}
	return m.freeze(ctx, false, primitives.SIGCONT)
}

func (m *model) freeze(ctx context.Context, paused bool, sig primitives.Signal) error {
	if _, err := m.EnvironmentPrimitive.Stat(ctx, "."); err != nil {
		return err // it has ended
	}
	if m.fault != "Pause freezes nothing" {
		m.signal(ctx, sig)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault == "pausing twice is an error" && m.paused && paused {
		return &primitives.Error{Op: "pause", Err: fs.ErrExist}
	}
	m.paused = paused
	return nil
}

func (m *model) Poll(ctx context.Context) (primitives.State, error) {
	state, err := m.EnvironmentPrimitive.Poll(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paused && state.Running() && m.fault != "Poll says running while paused" {
		state.Status = primitives.StatusPaused
	}
	return state, err
}

func (m *model) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	if m.fault == "a paused sandbox cannot be terminated" && m.isPaused() {
		return primitives.TerminateReport{}, m.gate("terminate")
	}
	if m.fault == "the copies end with the original" {
		for _, c := range m.copies {
			_, _ = c.Terminate(ctx) // the cases check the copies
		}
	}
	return m.EnvironmentPrimitive.Terminate(ctx)
}

func (m *model) Close() error {
	if m.fault == "a paused sandbox cannot be closed" && m.isPaused() {
		return m.gate("close")
	}
	return m.EnvironmentPrimitive.Close()
}

// ReadUsage adds the processor time, because not every system counts it for local sandboxes.
func (m *model) ReadUsage(ctx context.Context) (primitives.Usage, error) {
	u, err := primitives.ReadUsage(ctx, m.EnvironmentPrimitive)
	if err == nil && m.fault == "usage is made up" {
		u = primitives.Usage{CPU: time.Second, Memory: 1 << 20, Processes: 3}
	}
	return u, err
}

// modelHarness creates models with a fault; an empty fault means a good model.
func modelHarness(t *testing.T, fault string) Harness {
	t.Helper()
	s := &shelf{t: t, kept: map[string]*local.Sandbox{}}
	inner := localHarness(t, func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive { return p })
	return Harness{
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			s.mu.Lock()
			s.dir = dir
			s.mu.Unlock()
			p, err := inner.Open(ctx, dir)
			if err != nil {
				return nil, err
			}
			return s.model(p, fault), nil
		},
		Restore: func(_ context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.model(s.kept[id], fault), nil
		},
		Forget: func(context.Context, string) error { return nil },
	}
}

// TestCopyMutants is TestMutants for faults that local sandboxes alone cannot show.
func TestCopyMutants(t *testing.T) {
	prepareHost(t)
	for _, m := range []struct{ fault, rule, says string }{
		{"a copy lacks links", "a copy has the files, permissions, times and links of the original", `inventory: got "deep `},
		{"a copy shares the original's files", "what is changed after Fork is changed in one sandbox only", `the first copy: got "after,after,before,by-0 by-1 by-original made-by-0"`},
		{"a copy has settings of its own", "a copy has the settings of the original and an identity of its own", `environment: got "A_COPY=1`},
		{"Fork ends the original's processes", "the processes of the original go on, and only there", "code: got 137, want 5"},
		{"a copy knows the original's durable commands", "durable commands are not in the copies", `Reattach in the copy: error is <nil>, want "file does not exist" in its chain`},
		{"the copies end with the original", "the copies outlive the original and can be copied themselves", "g: sandbox is terminated"},
		{"Fork of none is no error", "Fork of less than one copy is fs.ErrInvalid", `Fork of 0: error is <nil>, want "invalid argument" in its chain`},
		{"Fork ignores its context", "Fork with a cancelled context makes nothing", `Fork: error is <nil>, want "context canceled" in its chain`},
		{"a snapshot lacks links", "a sandbox made of a snapshot has the files of then", `inventory: got "deep `},
		{"Snapshot ends what runs", "a sandbox made of a snapshot has the files of then", "code of what ran meanwhile: got 137, want 5"},
		{"Snapshot ignores its context", "Snapshot with a cancelled context makes nothing", `Snapshot: error is <nil>, want "context canceled" in its chain`},
		{"Pause freezes nothing", "a paused process makes no progress, and goes on after Resume", "the paused process answered: <nil>"},
		{"Resume does nothing", "a paused process makes no progress, and goes on after Resume", inVain + " for the answers after Resume"},
		{"calls work while paused", "a paused sandbox says so and takes no calls until Resume", `want "sandbox is unavailable" in its chain`},
		{"Poll says running while paused", "a paused sandbox says so and takes no calls until Resume", `status: got "running", want "paused"`},
		{"pausing twice is an error", "a paused sandbox says so and takes no calls until Resume", "Pause: pause: file already exists"},
		{"a paused sandbox cannot be terminated", "a paused sandbox can be terminated", "Terminate: terminate: sandbox is unavailable"},
		{"a paused sandbox cannot be closed", "a paused sandbox can be closed, and attaching resumes it", "waiting for Close: close: sandbox is unavailable"},
		{"a paused sandbox cannot be copied", "a paused sandbox can be copied, and the copies run", "Fork: fork: sandbox is unavailable"},
		{"usage is made up", "usage grows with work and shrinks with its end", "memory 1048576 before and 1048576 while 67108864 more are held"},
	} {
		t.Run(m.fault, func(t *testing.T) {
			t.Parallel()
			broken := suiteOf(t, modelHarness(t, m.fault))
			if m.fault == "Pause freezes nothing" {
				broken.calm = time.Minute // until the process makes progress, however busy the machine is
			}
			expectKilled(t, m.rule, m.says, suiteOf(t, modelHarness(t, "")), broken)
		})
	}
}
