package modal_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// The benchmarks compare the guest with Modal's own calls, on the same server and in
// the same sandbox: "ours" and "sdk" of each.

// both opens a sandbox twice: with its guest, and with Modal's own calls alone.
func both(b *testing.B) (*guest.Sandbox, *sdk.Sandbox) {
	b.Helper()
	newServer(b)
	ours := open(b, config(b))
	mc, err := sdk.NewClient()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(mc.Close)
	theirs, err := mc.Sandboxes.FromID(b.Context(), ours.ID(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := theirs.Detach(); err != nil {
			b.Error(err)
		}
	})
	return ours, theirs
}

func BenchmarkExec(b *testing.B) {
	ours, theirs := both(b)
	args := []string{"/bin/true"}
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			if _, err := primitives.Run(b.Context(), ours, primitives.Command{Args: args}, primitives.RunOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sdk", func(b *testing.B) {
		for b.Loop() {
			p, err := theirs.Exec(b.Context(), args, nil)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadAll(p.Stdout); err != nil {
				b.Fatal(err)
			}
			if _, err := p.Wait(b.Context(), nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkThousandFiles(b *testing.B) {
	ours, theirs := both(b)
	files := make([]primitives.File, 1000)
	for i := range files {
		files[i] = primitives.File{Path: fmt.Sprintf("/tmp/many/%d", i), Content: make([]byte, 4<<10)}
	}
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			errs, err := primitives.WriteFiles(b.Context(), ours, files)
			if err := errors.Join(append(errs, err)...); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sdk", func(b *testing.B) {
		for b.Loop() {
			for _, f := range files {
				if err := theirs.Filesystem.WriteBytes(b.Context(), f.Content, f.Path, nil); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func BenchmarkReadLarge(b *testing.B) {
	ours, theirs := both(b)
	const size = 16 << 20
	if err := ours.WriteFile(b.Context(), "/tmp/large", io.LimitReader(zeros{}, size), primitives.WriteOptions{}); err != nil {
		b.Fatal(err)
	}
	b.Run("ours", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := primitives.ReadFile(b.Context(), ours, "/tmp/large", size); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sdk", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := theirs.Filesystem.ReadBytes(b.Context(), "/tmp/large", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkWriteLarge(b *testing.B) {
	ours, theirs := both(b)
	content := make([]byte, 16<<20)
	b.Run("ours", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			errs, err := primitives.WriteFiles(b.Context(), ours, []primitives.File{{Path: "/tmp/large", Content: content}})
			if err := errors.Join(append(errs, err)...); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sdk", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			if err := theirs.Filesystem.WriteBytes(b.Context(), content, "/tmp/large", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkNew(b *testing.B) {
	newServer(b)
	cfg := config(b)
	open(b, cfg)
	for b.Loop() {
		box, err := modal.New(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if _, err := box.Terminate(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := box.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
