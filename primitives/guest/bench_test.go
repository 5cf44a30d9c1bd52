package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// benchSandboxes returns the sandboxes to compare, one for each kind of connection.
func benchSandboxes(b *testing.B) map[string]primitives.EnvironmentPrimitive {
	b.Helper()
	engine, err := local.New(b.Context(), local.Config{Root: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	inside, err := local.New(b.Context(), local.Config{Root: b.TempDir()})
	pipe, err := serveLocal(b.Context(), guest.Config{}, inside, err)
	if err != nil {
		b.Fatal(err)
	}
	stdio, err := startChild(b.Context(), runnerOf(b), b.TempDir(), guest.Config{})
	if err != nil {
		b.Fatal(err)
	}
	socket, err := startChild(b.Context(), runnerOf(b), b.TempDir(), withSocket(b, ""))
	if err != nil {
		b.Fatal(err)
	}
	all := map[string]primitives.EnvironmentPrimitive{"local": engine, "pipe": pipe, "stdio": stdio, "socket": socket}
	b.Cleanup(func() {
		for name, p := range all {
			if _, err := p.Terminate(context.WithoutCancel(b.Context())); err != nil {
				b.Errorf("%s: %v", name, err)
			}
			if err := p.Close(); err != nil {
				b.Errorf("%s: %v", name, err)
			}
		}
	})
	return all
}

// BenchmarkExec compares running /bin/true, interleaved, with os/exec. It reports
// the medians and their ratios to os/exec.
func BenchmarkExec(b *testing.B) {
	sandboxes := benchSandboxes(b)
	took := map[string][]time.Duration{}
	measure := func(name string, run func() error) {
		start := time.Now()
		if err := run(); err != nil {
			b.Fatal(err)
		}
		took[name] = append(took[name], time.Since(start))
	}
	cmd := primitives.Command{Args: []string{"/bin/true"}}
	for b.Loop() {
		measure("os", func() error {
			_, err := exec.CommandContext(b.Context(), "/bin/true").CombinedOutput()
			return err
		})
		for name, p := range sandboxes {
			measure(name, func() error {
				_, err := primitives.Run(b.Context(), p, cmd, primitives.RunOptions{})
				return err
			})
		}
	}
	base := median(took["os"])
	for name, all := range took {
		b.ReportMetric(float64(median(all).Microseconds()), name+"-us")
		b.ReportMetric(float64(median(all))/float64(base), name+"-x")
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkCall measures the cost of the connection alone.
func BenchmarkCall(b *testing.B) {
	for name, p := range benchSandboxes(b) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := p.Poll(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// benchBytes is how much of a file BenchmarkRead and BenchmarkWrite move, and how much of a
// command's output BenchmarkOutput reads.
const benchBytes = 64 << 20

func BenchmarkRead(b *testing.B) {
	for name, p := range benchSandboxes(b) {
		if err := p.WriteFile(b.Context(), "big", bytes.NewReader(make([]byte, benchBytes)), primitives.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				r, err := p.Open(b.Context(), "big")
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, r); n != benchBytes || err != nil {
					b.Fatal(n, err)
				}
				_ = r.Close()
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	content := make([]byte, benchBytes)
	for name, p := range benchSandboxes(b) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				if err := p.WriteFile(b.Context(), "big", bytes.NewReader(content), primitives.WriteOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOutput(b *testing.B) {
	for name, p := range benchSandboxes(b) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				proc, err := p.Exec(b.Context(), primitives.Command{Args: []string{"head", "-c", fmt.Sprint(benchBytes), "/dev/zero"}})
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, proc.Stdout()); n != benchBytes || err != nil {
					b.Fatal(n, err)
				}
				_ = proc.Close()
			}
		})
	}
}

// BenchmarkBatch writes 1000 files of 4 KiB into a fresh folder.
func BenchmarkBatch(b *testing.B) {
	for name, p := range benchSandboxes(b) {
		b.Run(name, func(b *testing.B) {
			round := 0
			for b.Loop() {
				round++
				files := make([]primitives.File, 1000)
				for i := range files {
					files[i] = primitives.File{Path: fmt.Sprintf("%d/%d", round, i), Content: make([]byte, 4<<10)}
				}
				if _, err := primitives.WriteFiles(b.Context(), p, files); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWatch measures the time from creating a directory to its event.
func BenchmarkWatch(b *testing.B) {
	for name, p := range benchSandboxes(b) {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			events, err := p.Watch(ctx, ".", primitives.WatchOptions{})
			if err != nil {
				b.Skip(err)
			}
			seen := make(chan string)
			go func() {
				defer close(seen)
				for event, err := range events {
					if err != nil {
						return
					}
					if event.Op != primitives.OpCreate {
						continue
					}
					select {
					case seen <- event.Path:
					case <-ctx.Done():
						return
					}
				}
			}()
			for round := 0; b.Loop(); round++ {
				want := fmt.Sprintf("%p-%d", b, round)
				if err := p.Mkdir(b.Context(), want, 0); err != nil {
					b.Fatal(err)
				}
				for got := range seen {
					if got == want {
						break
					}
				}
			}
			cancel()
			for range seen {
			}
		})
	}
}
