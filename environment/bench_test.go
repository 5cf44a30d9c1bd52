package environment

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives/local"
)

func BenchmarkCreateAndClose(b *testing.B) {
	cfg := Config{
		Sandbox:   Sandbox{Type: "local", Local: local.Config{Root: filepath.Join(b.TempDir(), "boxes")}},
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
		Sandbox: Sandbox{Type: "local", Local: local.Config{Root: filepath.Join(b.TempDir(), "boxes")}},
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
	const events = 100_000
	env, err := Create(b.Context(), Config{
		Sandbox: Sandbox{Type: "local", Local: local.Config{Root: filepath.Join(b.TempDir(), "boxes")}},
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
