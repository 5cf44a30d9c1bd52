package primitivestest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/primitives"
)

// suite is one run of the contract on one backend.
type suite struct {
	h        Harness
	dir      string // the host folder of the harness
	bin      string // the host folder for copies of the probe
	self     string // name of the test that called Run
	patience time.Duration
	calm     time.Duration // how long to wait to conclude that nothing happens
	run      string        // part of every token; unique to this run
	cases    atomic.Int64
	strays   sync.WaitGroup // goroutines that cases no longer wait for

	mu     sync.Mutex
	common map[ending]*commonSandbox
}

// probes holds the probe program by platform, for all suites of the process.
var probes struct {
	mu     sync.Mutex
	binary map[string][]byte
}

func newSuite(t testing.TB, h Harness) *suite {
	t.Helper()
	s := &suite{h: h, dir: t.TempDir(), bin: t.TempDir(), self: t.Name(), patience: h.Patience, calm: 2 * soon, run: rand.Text()}
	s.common = map[ending]*commonSandbox{}
	if s.patience == 0 {
		s.patience = time.Minute
	}
	return s
}

// buildProbe compiles the program that the cases run inside the sandbox.
func buildProbe(ctx context.Context, dir, goos, goarch string) ([]byte, error) {
	const pkg = "github.com/agentenv-dev/agentenv/primitives/primitivestest/probe"
	out := filepath.Join(dir, "probe-"+goos+"-"+goarch)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOFLAGS=")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the suite builds its probe with the Go toolchain, which failed: %w\n%s", err, msg)
	}
	return os.ReadFile(out)
}

func (s *suite) probeFor(t testingT, c primitives.Capabilities) ([]byte, error) {
	probes.mu.Lock()
	defer probes.mu.Unlock()
	key := c.OS + "/" + c.Arch
	if probes.binary[key] == nil {
		b, err := buildProbe(context.WithoutCancel(t.Context()), s.bin, c.OS, c.Arch)
		if err != nil {
			return nil, err
		}
		if probes.binary == nil {
			probes.binary = map[string][]byte{}
		}
		probes.binary[key] = b
	}
	return probes.binary[key], nil
}

// runGroup runs the cases of a group, and then checks that they left nothing.
func (s *suite) runGroup(t *testing.T, g group) {
	goroutines := goleak.IgnoreCurrent()
	files := openFiles()
	shared := s.open(t)
	// Runs when all cases have ended, the parallel ones included.
	t.Cleanup(func() {
		shared.end(t)
		s.endCommon(t)
		s.expectNoProcesses(t, "token-"+s.run)
		s.endWitness(t)
		s.join(t)
		// goleak itself gives up after less than a second, but some goroutines wait for
		// processes. Not fatal: Fatal during cleanup would not be reported.
		if err := await(s.patience, func() error {
			return goleak.Find(goroutines, goleak.IgnoreTopFunction("testing.tRunner.func1"))
		}); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
		if err := await(s.patience, func() error { return newFiles(files, openFiles()) }); err != nil {
			t.Error(err)
		}
	})
	tried, leftOut := g.split(s.h)
	for _, r := range leftOut {
		t.Logf("left out, for want of a function in the Harness: %s", r.name)
	}
	for _, r := range tried {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s.runCase(t, r, shared)
		})
	}
}

// runCase runs one case on the shared sandbox or on its own sandbox.
func (s *suite) runCase(t testingT, r rule, shared *sandbox) {
	switch {
	case r.after != "":
		r.check(t, s.ended(t, r.after))
		return
	case r.own:
		box := s.open(t)
		t.Cleanup(func() { box.end(t) })
		shared = box
	}
	r.check(t, shared.fork(t))
}

// make creates a sandbox.
func (s *suite) make(t testingT) *sandbox {
	t.Helper()
	p, err := s.h.Open(context.WithoutCancel(t.Context()), s.dir)
	if err != nil {
		t.Fatalf("opening a sandbox: %v", err)
	}
	return &sandbox{
		EnvironmentPrimitive: p, suite: s, probe: path.Join(p.Paths().App, "probe"),
		token: fmt.Sprintf("token-%s-%d-", s.run, s.cases.Add(1)), dir: ".",
	}
}

// open creates a sandbox that contains the probe.
func (s *suite) open(t testingT) *sandbox {
	t.Helper()
	box := s.make(t)
	binary, err := s.probeFor(t, box.Capabilities())
	if err == nil {
		err = box.WriteFile(context.WithoutCancel(t.Context()), box.probe, bytes.NewReader(binary), primitives.WriteOptions{Mode: 0o755})
	}
	if err != nil {
		box.end(t)
		t.Fatalf("putting the probe into the sandbox: %v", err)
	}
	return box
}

// join waits for the goroutines that the cases have left.
func (s *suite) join(t testingT) {
	t.Helper()
	done := make(chan struct{})
	go func() { s.strays.Wait(); close(done) }()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Errorf("calls that a case has given up do not come back although their sandbox has ended")
	}
}

// openFiles returns the open files of this process by descriptor. It returns nil if the system
// does not provide them.
func openFiles() map[string]string {
	// The runtime opens its own files with the first pipe.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	files := make(map[string]string, len(entries))
	for _, e := range entries {
		// The descriptor of the listing itself is closed by now.
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			files[e.Name()] = name
		}
	}
	return files
}

// newFiles returns an error that names the new open files, if more files are open than before.
func newFiles(before, now map[string]string) error {
	if len(now) <= len(before) {
		return nil
	}
	maps.DeleteFunc(now, func(fd, name string) bool { return before[fd] == name })
	return fmt.Errorf("more files are open in this process than before; these are new: %v", now)
}
