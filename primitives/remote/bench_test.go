package remote_test

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testssh"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// BenchmarkOverTheNetwork compares a sandbox of a server on the loopback device with one over ssh, and with the same engine
// in this process, which is the floor.
func BenchmarkOverTheNetwork(b *testing.B) {
	testssh.Start(b)
	runner, err := bundle.Path(b.Context(), bundle.Config{})
	if err != nil {
		b.Fatal(err)
	}
	find := func(context.Context, string, string) (string, error) { return runner, nil }
	url, _ := serve(b, onThisMachine(b))
	for _, kind := range []struct {
		name     string
		provider primitives.Provider
	}{
		{"local", local.Provider{Root: filepath.Join(b.TempDir(), "root"), Runner: find}},
		{"ssh", ssh.Provider{Host: testssh.Alias, Root: filepath.Join(b.TempDir(), "root"), Runner: find}},
		{"remote", at(url)},
	} {
		b.Run(kind.name, func(b *testing.B) { compareOne(b, kind.provider) })
	}
}

func compareOne(b *testing.B, p primitives.Provider) {
	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			s, err := p.Create(b.Context(), primitives.Spec{})
			if err != nil {
				b.Fatal(err)
			}
			end(b, s)
		}
	})
	s, err := p.Create(b.Context(), primitives.Spec{})
	if err != nil {
		b.Fatal(err)
	}
	defer end(b, s)
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			if _, err := primitives.Run(b.Context(), s, primitives.Command{Args: []string{"true"}}, primitives.RunOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	const size = 16 << 20
	content := strings.Repeat("x", size)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if err := s.WriteFile(b.Context(), "f", strings.NewReader(content), primitives.WriteOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			f, err := s.Open(b.Context(), "f")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, f); err != nil {
				b.Fatal(err)
			}
			_ = f.Close() // it was only read
		}
	})
}

func end(b *testing.B, s primitives.EnvironmentPrimitive) {
	_, err := s.Terminate(context.WithoutCancel(b.Context()))
	if err != nil {
		b.Error(err)
	}
	if err := s.Close(); err != nil {
		b.Error(err)
	}
}
