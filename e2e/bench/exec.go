//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// trueCommand is the cheapest program: its cost is that of the start.
var trueCommand = primitives.Command{Args: []string{"/bin/true"}, MergeStderr: true}

// withLocal calls use with a local sandbox.
func withLocal(ctx context.Context, use func(p primitives.EnvironmentPrimitive) error) (err error) {
	p, err := local.New(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer func() {
		_, terr := p.Terminate(ctx)
		err = errors.Join(err, terr, p.Close())
	}()
	return use(p)
}

func runTrue(ctx context.Context, p primitives.EnvironmentPrimitive) error {
	res, err := primitives.Run(ctx, p, trueCommand, primitives.RunOptions{})
	if err == nil && !res.Status.Success() {
		err = fmt.Errorf("/bin/true ended with %+v", res.Status)
	}
	return err
}

func osExecTrueOutput(ctx context.Context) error {
	_, err := exec.CommandContext(ctx, "/bin/true").CombinedOutput()
	return err
}

// benchExec compares single commands, then 32 at once.
func benchExec(ctx context.Context) (rows []row, err error) {
	err = withLocal(ctx, func(p primitives.EnvironmentPrimitive) error {
		base, ours, err := interleave(800,
			func() error { return osExecTrueOutput(ctx) },
			func() error { return runTrue(ctx, p) })
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("local exec, p50", "os/exec CombinedOutput", "us", lower, micros(base), micros(ours), 1.00))
		const total, at = 1200, 32
		base, ours, err = interleave(3,
			func() error { return parallel(total, at, func() error { return osExecTrueOutput(ctx) }) },
			func() error { return parallel(total, at, func() error { return runTrue(ctx, p) }) })
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("local exec rate at 32", "os/exec CombinedOutput", "1/s", higher, rate(total, base), rate(total, ours), 1.0))
		return nil
	})
	return rows, err
}

// parallel calls run total times, at most at calls at once.
func parallel(total, at int, run func() error) error {
	var workers sync.WaitGroup
	errs := make([]error, at)
	for w := range at {
		workers.Go(func() {
			for range total / at {
				if err := run(); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
}

// streamSize is how many bytes a stream benchmark moves.
const streamSize = 1 << 30

// benchStream compares reading a command's output with copying a raw pipe of the same command.
func benchStream(ctx context.Context) (rows []row, err error) {
	err = withLocal(ctx, func(p primitives.EnvironmentPrimitive) error {
		base, ours, err := interleave(5,
			func() error { return rawPipe(ctx, streamSize, 1<<20) },
			func() error { return readStream(ctx, p, streamSize) })
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("local stream", "raw pipe of 1 MiB", "MB/s", higher, rate(streamSize/1e6, base), rate(streamSize/1e6, ours), 0.9))
		base, ours, err = interleave(5,
			func() error { return rawPipe(ctx, streamSize, 64<<10) },
			func() error { return readStream(ctx, p, streamSize) })
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("local stream", "raw pipe of 64 KiB", "MB/s", higher, rate(streamSize/1e6, base), rate(streamSize/1e6, ours), 1.3))
		return nil
	})
	return rows, err
}

// flood returns a command that writes size bytes as fast as it can.
func flood(size int64) []string {
	return []string{"dd", "if=/dev/zero", "bs=1M", fmt.Sprintf("count=%d", size>>20), "status=none"}
}

func readStream(ctx context.Context, p primitives.EnvironmentPrimitive, size int64) error {
	proc, err := p.Exec(ctx, primitives.Command{Args: flood(size)})
	if err != nil {
		return err
	}
	n, err := discard(proc.Stdout())
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes of %d arrived", n, size)
	}
	_, werr := proc.Wait(ctx)
	return errors.Join(err, werr, proc.Close())
}

// discard reads to the end with a buffer of the size that both sides use.
func discard(r io.Reader) (int64, error) {
	buf := make([]byte, 1<<20)
	var total int64
	for {
		n, err := r.Read(buf)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// benchFiles compares a batch of small files with writing them by hand.
func benchFiles(ctx context.Context) (rows []row, err error) {
	err = withLocal(ctx, func(p primitives.EnvironmentPrimitive) error {
		base, ours, err := filesAgainstRaw(ctx, p)
		rows = append(rows, ratioRow("local 1000 x 4 KiB files", "create, write, rename", "ms", lower, base, ours, 1.1))
		return err
	})
	return rows, err
}

// batch returns 1000 files of 4 KiB below a new folder.
func batch(dir string) []primitives.File {
	files := make([]primitives.File, 1000)
	content := make([]byte, 4096)
	for i := range files {
		files[i] = primitives.File{Path: fmt.Sprintf("%s/f%04d", dir, i), Content: content}
	}
	return files
}

func writeBatch(ctx context.Context, p primitives.EnvironmentPrimitive, dir string) error {
	errs, err := primitives.WriteFiles(ctx, p, batch(dir))
	return errors.Join(append(errs, err)...)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
