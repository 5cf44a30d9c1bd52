package environment

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func BenchmarkCreateAndClose(b *testing.B) {
	cfg := Config{
		Sandbox:   Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}},
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

// BenchmarkQuery measures a query to a live agent.
func BenchmarkQuery(b *testing.B) {
	env, err := Create(b.Context(), Config{
		Sandbox: Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}},
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

// BenchmarkEvents measures the cost of one event on its way to the caller.
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
		Sandbox: Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}},
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

// BenchmarkChanges compares a workspace of 10 000 files of 2 KiB, 100 of them changed.
func BenchmarkChanges(b *testing.B) {
	box := Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}}
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

// BenchmarkFirstByte measures the time until the answer of a model begins, as curl in the
// sandbox sees it, with and without the gateway.
func BenchmarkFirstByte(b *testing.B) {
	b.Setenv("TEST_HOST_KEY", hostKey)
	b.Run("local", func(b *testing.B) {
		box := Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(b.TempDir(), "boxes")}}
		benchmarkFirstByte(b, box, "127.0.0.1")
	})
	b.Run("docker", func(b *testing.B) {
		box := Sandbox{
			Type: "docker", Spec: primitives.Spec{Image: testdocker.Debian(b), Network: "bridge", Labels: testdocker.Labels()},
			Provider: &docker.Provider{Pull: docker.PullNever, Mounts: []docker.Mount{{Source: "/usr", Target: "/usr", ReadOnly: true}}},
		}
		bridge, err := net.InterfaceByName("docker0")
		if err != nil {
			b.Fatal(err)
		}
		addresses, err := bridge.Addrs()
		if err != nil || len(addresses) == 0 {
			b.Fatalf("addresses of docker0: %v, %v", addresses, err)
		}
		host, _, _ := strings.Cut(addresses[0].String(), "/")
		benchmarkFirstByte(b, box, host)
	})
}

func benchmarkFirstByte(b *testing.B, box Sandbox, host string) {
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	direct := "http://" + l.Addr().String()
	env, err := Create(b.Context(), Config{
		Sandbox: box, Agent: Agent{Name: "command", Command: []string{"true"}},
		Credentials: map[string]Credential{"anthropic": {Env: "TEST_HOST_KEY", URL: direct}},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer env.Close()
	median := func(base string) float64 {
		out, err := env.Exec(b.Context(), "curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{time_starttransfer}\n",
			"-H", "X-Api-Key: "+env.gate.At.Token, "-d", "{}", base+"/v1/messages#[1-200]")
		if err != nil {
			b.Fatal(err)
		}
		var times []float64
		for line := range strings.Lines(out) {
			seconds, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
			if err != nil {
				b.Fatal(err)
			}
			times = append(times, seconds*1e6)
		}
		slices.Sort(times)
		return times[len(times)/2]
	}
	var past, through float64
	for b.Loop() {
		past += median(direct)
		through += median(env.gate.At.URL + "/anthropic")
	}
	b.ReportMetric(past/float64(b.N), "us/direct")
	b.ReportMetric(through/float64(b.N), "us/gateway")
}
