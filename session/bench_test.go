package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// BenchmarkPrompt compares a prompt of a session with the same prompt in an environment without
// a session. The difference is the cost of numbering, storing, and reading the transcript back.
func BenchmarkPrompt(b *testing.B) {
	cfg := scripted(b, steps(say("hello")))
	b.Run("environment", func(b *testing.B) {
		env, err := environment.Create(b.Context(), cfg.Environment)
		if err != nil {
			b.Fatal(err)
		}
		defer env.Close()
		for b.Loop() {
			for _, err := range env.ExecuteQuery(b.Context(), environment.Query{Prompt: "a"}) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("session", func(b *testing.B) {
		s, err := Open(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		for b.Loop() {
			turn, err := s.Prompt(b.Context(), "a")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := turn.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkApply applies a message of 1 MiB in chunks of 8 bytes.
func BenchmarkApply(b *testing.B) {
	const chunks = 1 << 17
	ev := chunk(runnerscripts.TypeAgentMessage, "m", "12345678")
	b.SetBytes(chunks * 8)
	b.ReportAllocs()
	for b.Loop() {
		c := NewConversation()
		for range chunks {
			c.Apply(ev)
		}
		if len(c.Blocks[0].Text) != chunks*8 {
			b.Fatal("text was lost")
		}
	}
}

// BenchmarkOpen100000Events opens a session with a long log. Open reads the state from the
// record, not from the log.
func BenchmarkOpen100000Events(b *testing.B) {
	sessions, err := sqlite.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer sessions.Close()
	cfg := scripted(b, steps(say("hello")))
	cfg.Store = sessions
	reopen := func() *AgentSession {
		s, err := Open(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	s := reopen()
	cfg.ID = s.ID()
	for range 100 {
		events := make([]runnerscripts.Event, 1000)
		for i := range events {
			events[i] = event(runnerscripts.TypeLog, "", runnerscripts.Log{Level: "info", Message: "one of many"})
		}
		if err := s.append(b.Context(), events...); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.append(b.Context(), event(runnerscripts.TypeSessionIdle, "", struct{}{})); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s := reopen()
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkCheckpoint compares checkpoints of many files with git in the same folder: the first one with git add, later
// ones, with 10 files changed and with none, with git status. It needs some GB of disk.
func BenchmarkCheckpoint(b *testing.B) {
	for _, files := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) { benchmarkCheckpoint(b, files) })
	}
}

func benchmarkCheckpoint(b *testing.B, files int) {
	sessions, err := sqlite.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer sessions.Close()
	cfg := scripted(b, steps(say("hello")))
	cfg.Store, cfg.HealthInterval, cfg.CheckpointInterval = sessions, -1, -1
	s, err := Open(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	turn, err := s.Prompt(b.Context(), "a")
	if err == nil {
		_, err = turn.Wait(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	dir := s.live().sandbox.(environmentSandbox).Primitive().Paths().Workspace
	write := func(i int, text string) {
		name := filepath.Join(dir, fmt.Sprintf("d%d", i/100), fmt.Sprintf("f%d.txt", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			b.Fatal(err)
		}
	}
	for i := range files {
		write(i, fmt.Sprintf("file %d\n%s", i, strings.Repeat("x", 1000)))
	}
	// Make the files old, as in a checkout: git reads recently written files again.
	if err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		before := time.Now().Add(-time.Hour)
		return errors.Join(err, os.Chtimes(name, before, before))
	}); err != nil {
		b.Fatal(err)
	}
	timed := func(f func()) time.Duration {
		began := time.Now()
		f()
		return time.Since(began)
	}
	git := func(args ...string) {
		cmd := exec.CommandContext(b.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
	}
	checkpoint := func() {
		if _, err := s.Sync(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	first := timed(checkpoint)
	git("init", "-q")
	add := timed(func() { git("add", ".") })
	git("commit", "-qm", "all")
	checkpoint()
	round := 0
	change := func() {
		round++
		for i := range 10 {
			write((round*1009+i*997)%files, fmt.Sprintf("changed %d\n", round))
		}
	}
	status := func() { git("status", "--porcelain") }
	var changed, same, changedStatus, sameStatus time.Duration
	for b.Loop() { // alternately, each after its own change
		change()
		changedStatus += timed(status)
		change()
		changed += timed(checkpoint)
		sameStatus += timed(status)
		same += timed(checkpoint)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(b.N) }
	b.ReportMetric(first.Seconds(), "s-first")
	b.ReportMetric(first.Seconds()/add.Seconds(), "first/git-add")
	b.ReportMetric(ms(changed), "ms-10-changed")
	b.ReportMetric(float64(changed)/float64(changedStatus), "10-changed/git-status")
	b.ReportMetric(ms(same), "ms-nothing-changed")
	b.ReportMetric(float64(same)/float64(sameStatus), "nothing-changed/git-status")
}

// BenchmarkOpenIdleSessions opens a thousand idle sessions in one program.
func BenchmarkOpenIdleSessions(b *testing.B) {
	const many = 1000
	for b.Loop() {
		h, err := NewHost(HostConfig{Store: store.NewMemory()})
		if err != nil {
			b.Fatal(err)
		}
		cfg := scripted(b, steps(say("hello")))
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range many {
			if _, err := h.Create(b.Context(), cfg); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		used := after.HeapInuse + after.StackInuse - before.HeapInuse - before.StackInuse
		b.ReportMetric(float64(used)/many/1024, "KiB/session")
		if err := h.Shutdown(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
