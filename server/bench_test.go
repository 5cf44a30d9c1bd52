package server_test

import (
	"context"
	"iter"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/remote"
	"github.com/agentenv-dev/agentenv/session/store"
)

// pair returns a session of this program and, over TCP, the same one of a server.
func pair(b *testing.B, turns string) (*session.AgentSession, *remote.Session) {
	b.Helper()
	h, err := session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: server.Sessions(nil)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := h.Shutdown(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	url, _ := listen(b, newServer(b, func(cfg *server.Config) { cfg.Host = h }))
	own, err := h.Create(b.Context(), session.Config{Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: b.TempDir()}},
		Agent:   environment.Agent{Name: "script", Config: []byte(`{"turns":[` + turns + `]}`)},
	}})
	if err != nil {
		b.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	b.Cleanup(transport.CloseIdleConnections)
	c, err := remote.New(remote.Config{URL: url, Token: token, HTTP: &http.Client{Transport: transport}})
	if err != nil {
		b.Fatal(err)
	}
	s, err := c.Open(b.Context(), own.ID())
	if err != nil {
		b.Fatal(err)
	}
	return own, s
}

// BenchmarkPrompt measures the time from a prompt to its first event, in this program and over HTTP.
func BenchmarkPrompt(b *testing.B) {
	own, s := pair(b, `{"steps":[{"text":"x"}]}`)
	for name, prompt := range map[string]func() (turn, error){
		"program": func() (turn, error) { return own.Prompt(b.Context(), "go") },
		"http":    func() (turn, error) { return s.Prompt(b.Context(), "go") },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				turn, err := prompt()
				if err != nil {
					b.Fatal(err)
				}
				for range turn.Events(b.Context()) {
					break
				}
				b.StopTimer()
				if _, err := turn.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// turn is a prompt of either kind of session.
type turn interface {
	Events(ctx context.Context) iter.Seq2[runnerscripts.Event, error]
	Wait(ctx context.Context) (runnerscripts.QueryCompleted, error)
}

// BenchmarkEvents measures how fast readers get the events of a session that are stored, in this program and over HTTP, alone
// and ten at a time. The figure is for each reader.
func BenchmarkEvents(b *testing.B) {
	const said = 5000
	own, s := pair(b, `{"steps":[`+strings.TrimSuffix(strings.Repeat(`{"text":"a few words of the agent"},`, said), ",")+`]}`)
	turn, err := own.Prompt(b.Context(), "go")
	if err == nil {
		_, err = turn.Wait(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	state, err := own.State(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]struct {
		s       reader
		readers int
	}{"program": {own, 1}, "http": {s, 1}, "http-10": {s, 10}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var all sync.WaitGroup
				for range c.readers {
					all.Go(func() {
						for ev, err := range c.s.Events(b.Context(), 0) {
							if err != nil {
								b.Error(err)
								return
							}
							if ev.Seq == state.LastSeq {
								return
							}
						}
					})
				}
				all.Wait()
			}
			b.ReportMetric(float64(state.LastSeq)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkSlowReaders measures how fast one reader gets the events of a session while a thousand others have stopped reading.
func BenchmarkSlowReaders(b *testing.B) {
	const said, slow = 5000, 1000
	own, s := pair(b, `{"steps":[`+strings.TrimSuffix(strings.Repeat(`{"text":"a few words of the agent"},`, said), ",")+`]}`)
	turn, err := own.Prompt(b.Context(), "go")
	if err == nil {
		_, err = turn.Wait(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	state, err := own.State(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	stop := make(chan struct{})
	var begun, all sync.WaitGroup
	begun.Add(slow)
	for range slow {
		all.Go(func() {
			for range s.Events(b.Context(), 0) {
				begun.Done()
				<-stop
				return
			}
		})
	}
	begun.Wait()
	for b.Loop() {
		for ev, err := range s.Events(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			if ev.Seq == state.LastSeq {
				break
			}
		}
	}
	b.ReportMetric(float64(state.LastSeq)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	close(stop)
	all.Wait()
}

// BenchmarkSessions measures sessions that are created over HTTP and asked once, sixteen at a time: those that are then
// removed, and those that stay, with the memory that each takes in this program, which is the server and the client.
func BenchmarkSessions(b *testing.B) {
	for _, stay := range []bool{false, true} {
		name := "removed"
		if stay {
			name = "stay"
		}
		b.Run(name, func(b *testing.B) { benchSessions(b, stay) })
	}
}

func benchSessions(b *testing.B, stay bool) {
	root := b.TempDir()
	url, _ := listen(b, newServer(b, func(cfg *server.Config) {
		cfg.Configure = func(_ context.Context, cfg *session.Config) error {
			cfg.Environment.Sandbox.Provider = &local.Provider{Root: root}
			return nil
		}
	}))
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	b.Cleanup(transport.CloseIdleConnections)
	c, err := remote.New(remote.Config{URL: url, Token: token, HTTP: &http.Client{Transport: transport}})
	if err != nil {
		b.Fatal(err)
	}
	converse := func() error {
		s, err := c.Create(b.Context(), session.Config{Environment: environment.Config{
			Sandbox: environment.Sandbox{Type: "local"},
			Agent:   environment.Agent{Name: "script", Config: []byte(`{"turns":[{"steps":[{"text":"x"}]}]}`)},
		}})
		if err != nil {
			return err
		}
		turn, err := s.Prompt(b.Context(), "go")
		if err != nil {
			return err
		}
		if _, err := turn.Wait(b.Context()); err != nil || stay {
			return err
		}
		return s.Destroy(b.Context())
	}
	todo := make(chan struct{}, 16)
	var all sync.WaitGroup
	before := memory()
	for b.Loop() {
		todo <- struct{}{}
		all.Go(func() {
			defer func() { <-todo }()
			if err := converse(); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sessions/s")
	if stay {
		b.ReportMetric(float64(memory()-before)/1024/float64(b.N), "KiB/session")
	}
}

// memory returns how many bytes this program uses for what is alive, and for stacks.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// reader is a session of either kind.
type reader interface {
	Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error]
}
