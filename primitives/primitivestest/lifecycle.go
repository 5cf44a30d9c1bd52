package primitivestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
)

// lifecycleRules returns the rules about identity, Poll, Close and use after the end.
func lifecycleRules() []rule {
	return concat(identityRules(), crowdRules(), closeRules(), afterEndRules(), destroyRules())
}

// layout returns the paths in the one layout. The workspace may be elsewhere.
func layout(p primitives.Paths) primitives.Paths {
	want := primitives.PathsIn(p.Session)
	if !strings.HasPrefix(p.Workspace, p.Session+"/") {
		want.Workspace = p.Workspace
	}
	return want
}

func identityRules() []rule {
	return []rule{
		{name: "a sandbox has an id that stays", check: func(t testingT, s *sandbox) {
			expect(t, "id", s.ID(), s.ID())
			expect(t, "id is empty", s.ID() == "", false)
		}},
		{name: "two sandboxes have different ids and folders", check: func(t testingT, s *sandbox) {
			other := s.suite.witness(t)
			expect(t, "same id", s.ID() == other.ID(), false)
			s.write(t, "mine", "x")
			_, err := other.Stat(t.Context(), s.in("mine"))
			expectError(t, "Stat in the other sandbox", err, fs.ErrNotExist)
		}},
		{name: "all folders of the sandbox exist and follow the one layout", check: func(t testingT, s *sandbox) {
			paths := s.Paths()
			expect(t, "paths", paths, layout(paths))
			for _, dir := range paths.All() {
				info, err := s.Stat(t.Context(), dir)
				expect(t, "error of Stat "+dir, err, nil)
				expect(t, dir+" is a directory", info.IsDir(), true)
				expect(t, dir+" is absolute", path.IsAbs(dir), true)
			}
		}},
		{name: "the capabilities name the platform and do not change", check: func(t testingT, s *sandbox) {
			c := s.Capabilities()
			expect(t, "capabilities", c, s.Capabilities())
			if c.OS == "" || c.Arch == "" || c.TreeKill == "" {
				t.Errorf("capabilities %+v lack OS, Arch or TreeKill", c)
			}
			if !c.Isolation.AtLeast(primitives.IsolationNone) {
				t.Errorf("the isolation %q is none of those there are", c.Isolation)
			}
		}},
		{name: "Poll of a live sandbox is running", check: func(t testingT, s *sandbox) {
			state, err := s.Poll(t.Context())
			expect(t, "error", err, nil)
			expect(t, "status", state.Status, primitives.StatusRunning)
			expect(t, "running", state.Running(), true)
		}},
		{name: "Poll after Terminate is terminated, which is no error", after: terminated, check: func(t testingT, s *sandbox) {
			for range 2 {
				state, err := s.Poll(t.Context())
				expect(t, "error", err, nil)
				expect(t, "status", state.Status, primitives.StatusTerminated)
				expect(t, "running", state.Running(), false)
			}
		}},
	}
}

// crowdRules returns the rules about many operations at once.
func crowdRules() []rule {
	return []rule{
		{name: "a hundred commands at once each get their own output and status", check: func(t testingT, s *sandbox) {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					text := fmt.Sprintf("command %d", i)
					res, err := primitives.Run(t.Context(), s.EnvironmentPrimitive, s.command("cat", "exit", fmt.Sprint(i)),
						primitives.RunOptions{Stdin: strings.NewReader(text)})
					if err != nil || string(res.Stdout) != text || res.Status.Code != i {
						t.Errorf("command %d: %q %q %+v %v", i, res.Stdout, res.Stderr, res.Status, err)
					}
				})
			}
			wg.Wait()
		}},
		{name: "commands and files work at the same time", check: func(t testingT, s *sandbox) {
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					name := fmt.Sprintf("f%d", i)
					if err := s.put(t, name, name, primitives.WriteOptions{}); err != nil {
						t.Errorf("WriteFile: %v", err)
					}
					res, err := primitives.Run(t.Context(), s.EnvironmentPrimitive, s.command("show", name), primitives.RunOptions{})
					if err != nil || string(res.Stdout) != name {
						t.Errorf("%s: %q %v", name, res.Stdout, err)
					}
				})
			}
			wg.Wait()
		}},
		{name: "many commands one after the other leave no process", check: func(t testingT, s *sandbox) {
			for range 50 {
				s.probed(t, "out", "x")
			}
			expect(t, "processes", len(s.processes(t, s.token)), 0)
		}},
	}
}

func closeRules() []rule {
	return []rule{
		{name: "Close may be called again and after Terminate", own: true, check: func(t testingT, s *sandbox) {
			expect(t, "first", s.Close(), nil)
			expect(t, "second", s.Close(), nil)
			other := s.suite.open(t)
			other.terminate(t)
			expect(t, "after Terminate", other.Close(), nil)
			expect(t, "again", other.Close(), nil)
		}},
		{name: "Close ends the commands of the handle", own: true, check: func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "hang")
			expect(t, "error of Close", s.Close(), nil)
			s.suite.expectNoProcesses(t, s.token)
			expect(t, "error of closing the process", p.Close(), nil)
		}},
		{name: "Close ends watches", own: true, check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", primitives.WatchOptions{})
			expect(t, "error of Close", s.Close(), nil)
			s.expectWatchEnd(t, w, primitives.ErrUnavailable)
		}},
		{name: "Terminate ends watches", own: true, check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", primitives.WatchOptions{})
			s.terminate(t)
			s.expectWatchEnd(t, w, primitives.ErrTerminated)
		}},
	}
}

func (s *sandbox) expectWatchEnd(t testingT, w *watcher, want error) {
	t.Helper()
	s.within(t, "end of the watch", func() error {
		if err := <-w.end; !errors.Is(err, want) {
			return fmt.Errorf("want %q, got %v", want, err) //nolint:errorlint // only shown
		}
		return nil
	})
}

// operation is one call on a sandbox.
type operation struct {
	name string
	do   func(ctx context.Context, p primitives.EnvironmentPrimitive) error
}

// operations returns all calls that an ended sandbox refuses.
func operations() []operation {
	ops := []operation{
		{"Exec", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			proc, err := p.Exec(ctx, primitives.Command{Args: []string{"x"}})
			if err == nil {
				return proc.Close()
			}
			return err
		}},
		{"Run", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			_, err := primitives.Run(ctx, p, primitives.Command{Args: []string{"x"}}, primitives.RunOptions{})
			return err
		}},
		{"Watch", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			_, err := p.Watch(ctx, ".", primitives.WatchOptions{})
			return err
		}},
		{"WriteFiles", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			errs, err := primitives.WriteFiles(ctx, p, []primitives.File{{Path: "f"}})
			return errors.Join(append(errs, err)...)
		}},
		{"Pack", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			r, err := primitives.Pack(ctx, p, ".", primitives.PackOptions{})
			if err == nil {
				return r.Close()
			}
			return err
		}},
		{"Unpack", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			return primitives.Unpack(ctx, p, "d", bytes.NewReader(make([]byte, 1024)))
		}},
		{"Reattach", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			proc, err := primitives.Reattach(ctx, p, "x", primitives.Offset{})
			if err == nil {
				return proc.Close()
			}
			return err
		}},
	}
	for _, op := range fileOperations() {
		ops = append(ops, operation{op.name, func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			return op.do(ctx, p, "f")
		}})
	}
	return ops
}

// afterEndRules returns the rules that every call reports the end of its sandbox.
func afterEndRules() []rule {
	var rules []rule
	for _, op := range append(operations(), copyOperations()...) {
		rules = append(rules,
			rule{name: op.name + " after Terminate is ErrTerminated", after: terminated, check: func(t testingT, s *sandbox) {
				s.expectRefused(t, op, primitives.ErrTerminated)
			}},
			rule{name: op.name + " after Close is ErrUnavailable", after: closed, check: func(t testingT, s *sandbox) {
				s.expectRefused(t, op, primitives.ErrUnavailable)
			}},
		)
	}
	return rules
}

// expectRefused performs an operation and expects an error. A sandbox that does not support the
// operation may also return errors.ErrUnsupported.
func (s *sandbox) expectRefused(t testingT, op operation, want error) {
	t.Helper()
	err := op.do(t.Context(), s.EnvironmentPrimitive)
	if errors.Is(err, errors.ErrUnsupported) && isAny(want, primitives.ErrTerminated, primitives.ErrUnavailable) {
		switch op.name {
		case "Watch", "Pack", "Unpack", "Reattach", "Fork", "Snapshot", "Pause", "Resume", "ReadUsage":
			return
		}
	}
	expectError(t, op.name, err, want)
}

// destroyRules returns the rules that the death of a sandbox is an error, never a status or an
// empty result.
func destroyRules() []rule {
	possible := func(h Harness) bool { return h.Destroy != nil }
	rules := []rule{
		{name: "Poll of a destroyed sandbox is lost or exited", after: destroyed, possible: possible, check: func(t testingT, s *sandbox) {
			eventually(t, s.suite.patience, func() error {
				state, err := s.Poll(t.Context())
				if err != nil || state.Status != primitives.StatusLost && state.Status != primitives.StatusExited {
					return fmt.Errorf("state %+v and %v", state, err) //nolint:errorlint // only shown
				}
				return nil
			})
		}},
		{name: "a command in a destroyed sandbox is lost, not exited", own: true, possible: possible, check: func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "hang")
			if err := s.suite.h.Destroy(t.Context(), s.EnvironmentPrimitive); err != nil {
				t.Fatalf("destroying the sandbox: %v", err)
			}
			s.within(t, "Wait", func() error {
				status, err := p.Wait(t.Context())
				if status.Reason != primitives.ReasonLost && !errors.Is(err, primitives.ErrUnavailable) {
					return fmt.Errorf("status %+v and %v", status, err) //nolint:errorlint // only shown
				}
				return nil
			})
		}},
	}
	for _, op := range append(operations(), copyOperations()...) {
		rules = append(rules, rule{
			name: op.name + " in a destroyed sandbox is ErrUnavailable", after: destroyed, possible: possible,
			check: func(t testingT, s *sandbox) {
				s.expectRefused(t, op, primitives.ErrUnavailable)
			},
		})
	}
	return rules
}
