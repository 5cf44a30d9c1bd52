package testmodal_test

import (
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
)

func BenchmarkCreate(b *testing.B) {
	_, mc := open(b)
	for b.Loop() {
		create(b, mc, nil)
	}
}

func BenchmarkExecAndWait(b *testing.B) {
	_, mc := open(b)
	sb := create(b, mc, nil)
	for b.Loop() {
		p, err := sb.Exec(b.Context(), []string{"true"}, nil)
		if err != nil {
			b.Fatal(err)
		}
		if code, err := p.Wait(b.Context(), nil); err != nil || code != 0 {
			b.Fatal(code, err)
		}
	}
}

func BenchmarkWrite1KiB(b *testing.B) {
	_, mc := open(b)
	sb := create(b, mc, nil)
	path := filepath.Join(workdir(b, sb), "file")
	data := make([]byte, 1<<10)
	for b.Loop() {
		if err := sb.Filesystem.WriteBytes(b.Context(), data, path, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite64MiB(b *testing.B) {
	_, mc := open(b)
	sb := create(b, mc, nil)
	path := filepath.Join(workdir(b, sb), "file")
	data := make([]byte, 64<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := sb.Filesystem.WriteBytes(b.Context(), data, path, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStartAndClose(b *testing.B) {
	for b.Loop() {
		s, err := testmodal.Start(b.Context(), testmodal.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
