package environment

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives/local"
)

func BenchmarkCreateAndClose(b *testing.B) {
	cfg := Config{
		Sandbox:   Sandbox{Type: "local", Local: local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}},
		Workspace: []Source{{Files: []File{{Path: "a", Content: "1\n"}}}},
	}
	for b.Loop() {
		env, err := Create(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		if err := env.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkQuery is a query to an agent that is alive.
func BenchmarkQuery(b *testing.B) {
	env, err := Create(b.Context(), Config{
		Sandbox: Sandbox{Type: "local", Local: local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}},
		Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(`
			end='{"type":"query_completed"}'
			read -r line; echo "$end"
			while read -r line; do echo "$end"; done`)},
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := collect(b.Context(), env, Query{Prompt: "x"}); err != nil {
			b.Fatal(err)
		}
	}
	if err := env.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkEvents is what one event costs on its way to the caller.
func BenchmarkEvents(b *testing.B) {
	for name, env := range map[string]map[string]string{
		"no secret": nil, "secrets": {"API_KEY": "sk-0123456789", "A_TOKEN": "whatever-it-is"},
	} {
		b.Run(name, func(b *testing.B) { benchmarkEvents(b, env) })
	}
}

func benchmarkEvents(b *testing.B, vars map[string]string) {
	const events = 100_000
	env, err := Create(b.Context(), Config{
		Sandbox: Sandbox{Type: "local", Local: local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}},
		Agent:   Agent{Env: vars},
		Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(fmt.Sprintf(`read -r line
			yes '{"type":"agent_message_chunk","payload":{"blockId":"1","content":{"type":"text","text":"some words"}}}' | head -n %d
			echo '{"type":"query_completed"}'`, events))},
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		n := 0
		for _, err := range env.ExecuteQuery(b.Context(), Query{Prompt: "x"}) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != events+1 {
			b.Fatalf("%d events", n)
		}
	}
	b.ReportMetric(float64(b.N)*events/b.Elapsed().Seconds(), "events/s")
	if err := env.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkChanges compares a workspace of 10 000 files of 2 KiB. 100 of them have
// changed.
func BenchmarkChanges(b *testing.B) {
	box := Sandbox{Type: "local", Local: local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}}
	content := strings.Repeat("0123456789abcde\n", 128)
	var files []File
	for i := range 10_000 {
		files = append(files, File{Path: fmt.Sprintf("dir%d/file%d", i%100, i), Content: content})
	}
	env, err := Create(b.Context(), Config{Sandbox: box, Workspace: []Source{{Files: files}}})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 100 {
		if err := env.Primitive().WriteFile(b.Context(), files[i].Path, strings.NewReader("new\n"+content), writeOptions); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if changes, err := env.Changes(b.Context()); err != nil || len(changes) != 100 {
				b.Fatalf("%d changes, %v", len(changes), err)
			}
		}
	})
	b.Run("patch", func(b *testing.B) {
		for b.Loop() {
			if err := env.Patch(b.Context(), io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	if err := env.Close(); err != nil {
		b.Fatal(err)
	}
}
