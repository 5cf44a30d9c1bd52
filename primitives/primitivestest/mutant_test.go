package primitivestest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// mutant is a backend that breaks the contract in one way.
type mutant struct {
	name string // what is broken
	rule string // the case that must fail
	says string // part of its first error
	wrap func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive
}

// TestMutants checks that the suite can fail: each case named here passes on a good backend, see
// TestReference, and fails on the same backend with one fault.
func TestMutants(t *testing.T) {
	prepareHost(t)
	for _, m := range slices.Concat(execMutants(), streamMutants(), endingMutants(), fileMutants(), unpackMutants(), pathMutants(), watchMutants(), lifecycleMutants(), forwardMutants()) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			expectKilled(t, m.rule, m.says, suiteOf(t, localHarness(t, flawless)), suiteOf(t, localHarness(t, m.wrap)))
		})
	}
}

// TestRuleNames checks that the names of the cases are unique, so that each can be run and
// named alone.
func TestRuleNames(t *testing.T) {
	total := 0
	for _, g := range groups() {
		seen := map[string]bool{}
		for _, r := range g.rules {
			if seen[r.name] {
				t.Errorf("%s: two rules %q", g.name, r.name)
			}
			seen[r.name] = true
			total++
		}
	}
	if total < 190 {
		t.Errorf("%d rules, the contract has about 190", total)
	}
}

func TestRulesThatAHarnessCannotTryAreSeparated(t *testing.T) {
	left, total := 0, 0
	for _, g := range groups() {
		tried, leftOut := g.split(Harness{})
		left, total = left+len(leftOut), total+len(g.rules)
		if len(tried)+len(leftOut) != len(g.rules) {
			t.Errorf("%s: %d and %d of %d rules", g.name, len(tried), len(leftOut), len(g.rules))
		}
		for _, r := range leftOut {
			if r.possible == nil {
				t.Errorf("%q is left out and always possible", r.name)
			}
		}
	}
	if left == 0 || left == total {
		t.Errorf("%d of %d rules are left out without any function", left, total)
	}
}

// expectKilled checks that a rule fails on a broken backend and that its first error contains says.
// If the rule must wait in vain, the limit is three times as long as the whole rule takes on a good
// backend, so that a slow machine gets a longer limit and not another result. It is at least two
// seconds, because a machine may be slow only now and then.
func expectKilled(t *testing.T, name, says string, good, broken *suite) {
	t.Helper()
	r := findRule(t, name)
	if strings.HasPrefix(says, inVain) {
		began := time.Now()
		if log := attempt(t, good, r); len(log) > 0 {
			t.Fatalf("%q fails on a good backend:\n%s", name, strings.Join(log, "\n"))
		}
		broken.patience = max(3*time.Since(began), 2*time.Second)
	}
	log := attempt(t, broken, r)
	for ; len(log) > 0 && !strings.Contains(log[0], says); log = attempt(t, broken, r) {
		if !strings.HasPrefix(log[0], inVain) || broken.patience >= time.Minute {
			t.Fatalf("%q fails for another reason: %s", name, brief(log[0]))
		}
		broken.patience *= 4 // the limit was too short for what comes before
	}
	if len(log) == 0 {
		t.Fatalf("%q passes", name)
	}
}

// suiteOf returns a suite for attempt. When its sandboxes have ended, the calls that cases have
// given up must come back.
func suiteOf(t *testing.T, h Harness) *suite {
	t.Helper()
	s := newSuite(t, h)
	t.Cleanup(func() { s.join(t) })
	return s
}

// flawless returns the wrapper of a mutant without a fault.
func flawless(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return wrapped{whole(p)}
}

// localHarness creates local sandboxes with a fault.
func localHarness(t *testing.T, wrap func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive) Harness {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Harness{Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
		p, err := local.New(ctx, local.Config{Root: dir, Runner: self})
		if err != nil {
			return nil, err
		}
		// The fault may be that the sandbox cannot be ended.
		t.Cleanup(func() { endLocal(t, dir, p) })
		return wrap(p), nil
	}}
}

// endLocal ends a sandbox, even if its handle was closed.
func endLocal(t *testing.T, dir string, p *local.Sandbox) {
	t.Helper()
	ctx := context.Background()
	_, err := p.Terminate(ctx)
	if errors.Is(err, primitives.ErrUnavailable) {
		var again *local.Sandbox
		if again, err = local.Attach(ctx, local.Config{Root: dir}, p.ID()); err == nil {
			_, err = again.Terminate(ctx)
			err = errors.Join(err, again.Close())
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil // it was terminated before
		}
	}
	if err := errors.Join(err, p.Close()); err != nil {
		t.Errorf("ending a sandbox: %v", err)
	}
}

func findRule(t *testing.T, name string) rule {
	t.Helper()
	for _, g := range groups() {
		for _, r := range g.rules {
			if r.name == name {
				return r
			}
		}
	}
	t.Fatalf("there is no rule %q", name)
	return rule{}
}

// attempt runs one case and returns the errors that it reports.
func attempt(t *testing.T, s *suite, r rule) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	rec := &recorder{ctx: ctx, name: t.Name() + "/" + r.name}
	rec.do(func() {
		var shared *sandbox
		if !r.own {
			shared = s.open(rec)
			rec.Cleanup(func() { shared.end(rec) })
		}
		s.runCase(rec, r, shared)
	})
	cancel()
	for f := rec.lastCleanup(); f != nil; f = rec.lastCleanup() {
		rec.do(f)
	}
	return rec.log
}

// recorder is a testingT that records its errors.
type recorder struct {
	ctx  context.Context //nolint:containedctx // as testing.T does
	name string

	mu       sync.Mutex
	log      []string
	cleanups []func()
}

// do runs f in a goroutine like the testing package does, so that Fatalf ends only f.
func (r *recorder) do(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) lastCleanup() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cleanups) == 0 {
		return nil
	}
	f := r.cleanups[len(r.cleanups)-1]
	r.cleanups = r.cleanups[:len(r.cleanups)-1]
	return f
}

func (r *recorder) Helper()                  {}
func (r *recorder) Logf(string, ...any)      {}
func (r *recorder) Name() string             { return r.name }
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.log) > 0
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
