package primitivestest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// sandbox is the sandbox of a case, with a folder of its own for the case.
type sandbox struct {
	primitives.EnvironmentPrimitive
	suite *suite
	probe string // absolute path of the probe program in the sandbox
	token string // in the arguments of every process of the case
	dir   string // the case's folder, relative to the workspace
}

// fork gives a case its folder and its token.
func (s *sandbox) fork(t testingT) *sandbox {
	t.Helper()
	box := *s
	n := s.suite.cases.Add(1)
	box.dir = fmt.Sprintf("case-%d", n)
	box.token = fmt.Sprintf("%s%d.", s.token, n)
	if err := box.Mkdir(t.Context(), box.dir, 0); err != nil {
		t.Fatalf("making the folder of the case: %v", err)
	}
	return &box
}

// end terminates and closes a sandbox.
func (s *sandbox) end(t testingT) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), s.suite.patience)
	defer cancel()
	_, err := s.Terminate(ctx)
	if errors.Is(err, primitives.ErrUnavailable) {
		err = s.endClosed(ctx)
	}
	if err != nil {
		t.Errorf("Terminate at the end of the case: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close at the end of the case: %v", err)
	}
}

// endClosed terminates a sandbox whose handle the case has closed. It cannot attach to a
// destroyed sandbox.
func (s *sandbox) endClosed(ctx context.Context) error {
	if s.suite.h.Attach == nil {
		return nil
	}
	p, err := s.suite.h.Attach(ctx, s.suite.dir, s.ID())
	if err != nil {
		return nil // it is gone
	}
	_, err = p.Terminate(ctx)
	return errors.Join(err, p.Close())
}

// in returns the path of a file of the case, relative to the workspace.
func (s *sandbox) in(name ...string) string { return path.Join(append([]string{s.dir}, name...)...) }

// abs returns the absolute path of a file of the case.
func (s *sandbox) abs(name ...string) string {
	return path.Join(s.Paths().Workspace, s.in(name...))
}

// command returns a command that runs the probe in the folder of the case.
func (s *sandbox) command(words ...string) primitives.Command {
	return primitives.Command{Args: append([]string{s.probe, "mark", s.token}, words...), Dir: s.dir}
}

// run runs a command to its end.
func (s *sandbox) run(t testingT, cmd primitives.Command, opts primitives.RunOptions) primitives.RunResult {
	t.Helper()
	// The case may be over and its context done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*s.suite.patience)
	defer cancel()
	res, err := primitives.Run(ctx, s.EnvironmentPrimitive, cmd, opts)
	if ctx.Err() != nil {
		t.Fatalf(inVain+" for the end of %q", shorten(cmd.Args))
	}
	if err != nil {
		t.Fatalf("Run %q: %v (stderr %q)", shorten(cmd.Args), err, res.Stderr)
	}
	return res
}

// probed runs the probe, expects success and returns what it printed.
func (s *sandbox) probed(t testingT, words ...string) string {
	t.Helper()
	res := s.run(t, s.command(words...), primitives.RunOptions{})
	if !res.Status.Success() {
		t.Fatalf("probe %q ended with %+v: %s", shorten(words), res.Status, res.Stderr)
	}
	return string(res.Stdout)
}

// start starts a command and closes it at the end of the case.
func (s *sandbox) start(t testingT, ctx context.Context, cmd primitives.Command) primitives.Process { //nolint:revive // the context is what is tested
	t.Helper()
	p, err := s.Exec(ctx, cmd)
	if err != nil {
		t.Fatalf("Exec %q: %v", shorten(cmd.Args), err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing the process: %v", err)
		}
	})
	return p
}

// wait waits for the process to exit.
func (s *sandbox) wait(t testingT, p primitives.Process) primitives.ExitStatus {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // the case may be over
	defer cancel()
	var status primitives.ExitStatus
	s.within(t, "the command to exit", func() error {
		var err error
		status, err = p.Wait(ctx)
		return err
	})
	return status
}

// write writes a file of the case.
func (s *sandbox) write(t testingT, name, content string) {
	t.Helper()
	if err := s.WriteFile(t.Context(), s.in(name), strings.NewReader(content), primitives.WriteOptions{}); err != nil {
		t.Fatalf("WriteFile %q: %v", name, err)
	}
}

// read reads a file of the case.
func (s *sandbox) read(t testingT, name string) string {
	t.Helper()
	b, err := primitives.ReadFile(t.Context(), s, s.in(name), 0)
	if err != nil {
		t.Fatalf("ReadFile %q: %v", name, err)
	}
	return string(b)
}

// stat describes a file of the case.
func (s *sandbox) stat(t testingT, name string) primitives.FileInfo {
	t.Helper()
	info, err := s.Stat(t.Context(), s.in(name))
	if err != nil {
		t.Fatalf("Stat %q: %v", name, err)
	}
	return info
}

// list lists a folder of the case as one string: the paths, separated by spaces.
func (s *sandbox) list(t testingT, name string, opts primitives.ListOptions) string {
	t.Helper()
	infos, err := s.List(t.Context(), s.in(name), opts)
	if err != nil {
		t.Fatalf("List %q: %v", name, err)
	}
	paths := make([]string, len(infos))
	for i, info := range infos {
		paths[i] = info.Path
	}
	return strings.Join(paths, " ")
}

// processes returns the process IDs of the processes with the token, as the sandbox sees them.
func (s *sandbox) processes(t testingT, token string) []int {
	t.Helper()
	var pids []int
	cmd := primitives.Command{Args: []string{s.probe, "ps", token}}
	res := s.run(t, cmd, primitives.RunOptions{})
	if err := json.Unmarshal(res.Stdout, &pids); err != nil {
		t.Fatalf("list of processes: %v in %q %q", err, res.Stdout, res.Stderr)
	}
	return pids
}

// kill kills the processes with the token that this sandbox sees.
func (s *sandbox) kill(t testingT, token string) {
	t.Helper()
	// Some may exit by themselves meanwhile, which makes the probe fail.
	s.run(t, primitives.Command{Args: []string{s.probe, "kill", "KILL", token}}, primitives.RunOptions{})
}

// patiently tries a case that depends on the speed of the machine, first with a short time and
// then with ever longer ones, until try reports that the time was long enough. It fails the
// case if even the suite's patience was too short.
func (s *sandbox) patiently(t testingT, what string, try func(short time.Duration) bool) {
	t.Helper()
	for short := soon; ; short *= 4 {
		if try(short) || t.Failed() {
			return
		}
		if short > s.suite.patience {
			t.Fatalf("%s: not even within %v", what, short)
		}
	}
}

// expectGone waits until no process has the token.
func (s *sandbox) expectGone(t testingT, token string) {
	t.Helper()
	eventually(t, s.suite.patience, func() error {
		if pids := s.processes(t, token); len(pids) > 0 {
			return fmt.Errorf("processes live on: %v", pids)
		}
		return nil
	})
}

// expectLines reads a stream until the line has come n times.
func (s *sandbox) expectLines(t testingT, r io.Reader, line string, n int) {
	t.Helper()
	s.within(t, fmt.Sprintf("%d lines %q", n, line), func() error {
		var got bytes.Buffer
		var b [1]byte
		for strings.Count(got.String(), line+"\n") < n {
			m, err := r.Read(b[:])
			got.Write(b[:m])
			if err != nil {
				return fmt.Errorf("the stream ended after %q: %w", got.String(), err)
			}
		}
		return nil
	})
}

// readAll reads a stream to its end.
func (s *sandbox) readAll(t testingT, r io.Reader) string {
	t.Helper()
	var b []byte
	s.within(t, "end of the stream", func() error {
		var err error
		b, err = io.ReadAll(r)
		return err
	})
	return string(b)
}

// inVain begins the error of every wait that takes longer than the suite's patience.
const inVain = "waited in vain"

// within fails the case unless f returns in time and without an error.
func (s *sandbox) within(t testingT, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	s.suite.strays.Go(func() { done <- f() })
	timer := time.NewTimer(s.suite.patience)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	case <-timer.C:
		t.Fatalf(inVain+" for %s", what)
	}
}

// discard reads r to its end and returns the number of bytes. The time limit applies to each
// piece, not to the whole.
func (s *sandbox) discard(t testingT, what string, r io.Reader) int64 {
	t.Helper()
	pieces, done := &pieces{more: make(chan struct{}, 1)}, make(chan error, 1)
	s.suite.strays.Go(func() {
		_, err := io.Copy(pieces, r)
		done <- err
	})
	timer := time.NewTimer(s.suite.patience)
	defer timer.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("reading %s: %v", what, err)
			}
			return pieces.size
		case <-pieces.more:
			timer.Reset(s.suite.patience)
		case <-timer.C:
			t.Fatalf(inVain+" for more of %s", what)
		}
	}
}

// pieces counts the bytes written, and signals each write.
type pieces struct {
	size int64
	more chan struct{}
}

func (p *pieces) Write(b []byte) (int, error) {
	p.size += int64(len(b))
	select {
	case p.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

// eventually retries f until it returns no error, and otherwise fails the case.
func eventually(t testingT, patience time.Duration, f func() error) {
	t.Helper()
	if err := await(patience, f); err != nil {
		t.Fatalf(inVain+": %v", err)
	}
}

// await retries f until it returns no error, for at most patience.
func await(patience time.Duration, f func() error) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-timeout.C:
			return err
		case <-tick.C:
		}
	}
}

// expectError checks that an error wraps all wanted errors and says where it happened.
func expectError(t testingT, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: error is %v, want %q in its chain", what, err, w)
		}
	}
	var where *primitives.Error
	if err != nil && !errors.As(err, &where) {
		t.Errorf("%s: error %T (%v) has no *primitives.Error in its chain", what, err, err)
	}
}

func expect[V comparable](t testingT, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", what, brief(got), brief(want))
	}
}

// brief shortens long values.
func brief(v any) string {
	s := fmt.Sprintf("%#v", v)
	if len(s) > 300 {
		return fmt.Sprintf("%s ... (%d characters)", s[:300], len(s))
	}
	return s
}

func shorten(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = a[:min(len(a), 60)]
	}
	return out
}
