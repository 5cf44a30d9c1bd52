package local_test

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// interleave runs base and ours in turn, so that other load on the machine affects both alike. It
// reports the median of each and their ratio.
func interleave(b *testing.B, base, ours func()) {
	var times [2][]time.Duration
	for b.Loop() {
		for i, f := range []func(){base, ours} {
			start := time.Now()
			f()
			times[i] = append(times[i], time.Since(start))
		}
	}
	var median [2]time.Duration
	for i := range times {
		slices.Sort(times[i])
		median[i] = times[i][len(times[i])/2]
	}
	b.ReportMetric(float64(median[0].Nanoseconds()), "base-p50-ns")
	b.ReportMetric(float64(median[1].Nanoseconds()), "ours-p50-ns")
	b.ReportMetric(float64(median[1])/float64(median[0]), "ours/base")
}

func BenchmarkRun(b *testing.B) {
	s := newSandbox(b, local.Config{})
	interleave(b, func() {
		if _, err := exec.Command("/bin/true").CombinedOutput(); err != nil {
			b.Fatal(err)
		}
	}, func() {
		if res := run(b, s, primitives.Command{Args: []string{"/bin/true"}}); !res.Status.Success() {
			b.Fatal(res.Status)
		}
	})
}

func BenchmarkExecWait(b *testing.B) {
	s := newSandbox(b, local.Config{})
	interleave(b, func() {
		if _, err := exec.Command("/bin/true").CombinedOutput(); err != nil {
			b.Fatal(err)
		}
	}, func() {
		p, err := s.Exec(b.Context(), primitives.Command{Args: []string{"/bin/true"}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkRunParallel32(b *testing.B) {
	s := newSandbox(b, local.Config{})
	burst := func(f func()) func() {
		return func() {
			done := make(chan struct{})
			for range 32 {
				go func() { f(); done <- struct{}{} }()
			}
			for range 32 {
				<-done
			}
		}
	}
	interleave(b, burst(func() {
		if _, err := exec.Command("/bin/true").CombinedOutput(); err != nil {
			b.Error(err)
		}
	}), burst(func() {
		if res := run(b, s, primitives.Command{Args: []string{"/bin/true"}}); !res.Status.Success() {
			b.Error(res.Status)
		}
	}))
}

// BenchmarkStream compares with a pipe of 1 MiB that the same program fills.
func BenchmarkStream(b *testing.B) {
	const script = "head -c 268435456 /dev/zero"
	s := newSandbox(b, local.Config{})
	interleave(b, func() {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := local.GrowPipe(int(r.Fd())); err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		w.Close()
		if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 128<<10)); n != 256<<20 || err != nil {
			b.Fatal(n, err)
		}
		r.Close()
		_ = cmd.Wait()
	}, func() {
		p, err := s.Exec(b.Context(), shell(script))
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(struct{ io.Writer }{io.Discard}, p.Stdout()); n != 256<<20 || err != nil {
			b.Fatal(n, err)
		}
		_ = p.Close()
	})
}

// BenchmarkNew makes a sandbox and ends it.
func BenchmarkNew(b *testing.B) {
	root := b.TempDir()
	for b.Loop() {
		s, err := local.New(b.Context(), local.Config{Root: root})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Terminate(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
