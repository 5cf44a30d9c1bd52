package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testpostgres"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/remote"
)

// A server that is killed loses its session to the other one. The query in the kept sandbox has gone on, and the client
// connects again by itself, misses no event and gets none twice.
func TestTheSessionsOfAKilledServerGoOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testpostgres.URL(t))
	first := c.serve()
	s := c.session(c.client(c.balance(first, c.serve())), c.script("echo two >done; until [ -e gate ]; do sleep 0.05; done"))
	turn, err := s.Prompt(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	var killed time.Time
	for ev, err := range turn.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if killed.IsZero() && ev.Type == runnerscripts.TypeAgentMessage {
			first.kill()
			killed = time.Now()
			continue
		}
		if !killed.IsZero() && ev.Type == runnerscripts.TypeEnvironmentHealth { // by the other server
			t.Logf("the other server had the session %v after the first one was killed", time.Since(killed).Round(time.Millisecond))
			c.write("gate")
			break
		}
	}
	if _, err := turn.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.checkOnce(s, 1)
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Each server answers for the sessions of all, and a database that was away costs no session.
func TestEachServerAnswersForAll(t *testing.T) {
	t.Parallel()
	db := testpostgres.Start(t)
	c := newCluster(t, db.URL())
	here, there := c.client(c.serve().url), c.client(c.serve().url)
	s := c.session(here, c.script("true"))
	other := there.Session(s.ID())
	prompt := func(s *remote.Session) {
		t.Helper()
		turn, err := s.Prompt(t.Context(), "go")
		if err == nil {
			_, err = turn.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	prompt(s)
	prompt(other)
	const text = "a file"
	if err := other.WriteFile(t.Context(), "a", strings.NewReader(text), primitives.WriteOptions{}); err != nil {
		t.Error(err)
	}
	f, err := s.OpenFile(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
	_ = f.Close()
	db.Stop(t)
	accepted := make(chan error)
	go func() {
		turn, err := other.Prompt(t.Context(), "go")
		if err == nil {
			_, err = turn.Wait(t.Context())
		}
		accepted <- err
	}()
	db.Start(t)
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	c.checkOnce(s, 3)
	if err := other.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// A query in a kept sandbox goes on while the database is away for longer than a lease lasts, which ends the session in its
// server.
func TestAKeptQueryOutlivesAnOutageOfTheDatabase(t *testing.T) {
	t.Parallel()
	db := testpostgres.Start(t)
	c := newCluster(t, db.URL())
	first := c.serve()
	s := c.session(c.client(first.url), c.script("until [ -e gate ]; do sleep 0.05; done"))
	turn, err := s.Prompt(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		said := false
		for ev, err := range turn.Events(t.Context()) { // over all of it, by itself
			if err != nil {
				ended <- err
				return
			}
			if ev.Type == runnerscripts.TypeAgentMessage && !said {
				said = true
				close(begun)
			}
		}
		ended <- nil
	}()
	<-begun
	db.Stop(t)
	first.says("cannot be stored and ends")
	db.Start(t)
	c.write("gate")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	c.checkOnce(s, 1)
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that was stopped for longer than its leases last finds that it has lost them, and stores nothing more.
func TestAServerThatWasAwayGivesUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testpostgres.URL(t))
	first := c.serve()
	s := c.session(c.client(first.url), c.script("until [ -e gate ]; do sleep 0.05; done"))
	turn, err := s.Prompt(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	for ev, err := range turn.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeAgentMessage {
			break
		}
	}
	first.signal(syscall.SIGSTOP)
	other := c.client(c.serve().url).Session(s.ID())
	for _, err := range other.Events(t.Context(), 1) { // it waits until the lease has expired
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	first.signal(syscall.SIGCONT)
	c.write("gate")
	if _, err := turn.Wait(t.Context()); err != nil { // by the first server
		t.Fatal(err)
	}
	c.checkOnce(s, 1)
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// cluster are servers with one database, on one machine.
type cluster struct {
	t              *testing.T
	database, home string
	runner         string
}

const clusterToken = "token-of-the-servers"

func newCluster(t *testing.T, database string) *cluster {
	t.Helper()
	runner, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, database: database, home: t.TempDir(), runner: runner}
	if err := os.WriteFile(filepath.Join(c.home, "token"), []byte(clusterToken), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checkNothingLeft(t, c.home) })
	return c
}

// servedProcess is a server in a process of its own.
type servedProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	dead bool

	mu   sync.Mutex
	said bytes.Buffer // its log
	more chan struct{}
}

// Write implements io.Writer for the log.
func (s *servedProcess) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return s.said.Write(p)
}

func (s *servedProcess) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.String()
}

// says waits until the log has a text.
func (s *servedProcess) says(text string) {
	s.t.Helper()
	patience := time.After(time.Minute)
	for !strings.Contains(s.log(), text) {
		select {
		case <-s.more:
		case <-patience:
			s.t.Fatalf("the server does not say %q: %s", text, s.log())
		}
	}
}

// serve starts a server, which ends with the test.
func (c *cluster) serve() *servedProcess {
	c.t.Helper()
	path, err := exec.LookPath("envctl")
	if err != nil {
		c.t.Fatal(err)
	}
	s := &servedProcess{t: c.t, more: make(chan struct{}, 1)}
	s.cmd = exec.CommandContext(context.WithoutCancel(c.t.Context()), path,
		"serve", "--listen", "127.0.0.1:0", "--token-file", filepath.Join(c.home, "token"), "--database", c.database, "--log-level", "error")
	s.cmd.Env = append(os.Environ(), "HOME="+c.home, "XDG_CACHE_HOME="+filepath.Join(c.home, ".cache"),
		"XDG_STATE_HOME="+filepath.Join(c.home, ".state"), bundle.ExplicitVariable+"="+c.runner, "GORACE=atexit_sleep_ms=0")
	s.cmd.Stderr = s
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if s.dead {
			return
		}
		s.signal(syscall.SIGCONT)
		s.signal(syscall.SIGINT)
		if err := s.cmd.Wait(); err != nil || c.t.Failed() {
			c.t.Errorf("a server: %v: %s", err, s.log())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	s.url = strings.TrimSpace(line)
	return s
}

func (s *servedProcess) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
}

func (s *servedProcess) kill() {
	s.signal(syscall.SIGKILL)
	_ = s.cmd.Wait() // it was killed
	s.dead = true
}

// balance returns the URL of a load balancer: each connection goes to the first server that accepts it.
func (c *cluster) balance(servers ...*servedProcess) string {
	c.t.Helper()
	l, err := new(net.ListenConfig).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	var all sync.WaitGroup
	c.t.Cleanup(func() { cancel(); _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { relay(ctx, in, servers) })
		}
	})
	return "http://" + l.Addr().String()
}

func relay(ctx context.Context, in net.Conn, servers []*servedProcess) {
	defer func() { _ = in.Close() }()
	for _, s := range servers {
		out, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			continue
		}
		end := context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
		defer end()
		var both sync.WaitGroup
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			both.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_, _ = way[0].Close(), way[1].Close()
			})
		}
		both.Wait()
		return
	}
}

// client returns a client of a server.
func (c *cluster) client(url string) *remote.Client {
	c.t.Helper()
	cl, err := remote.New(remote.Config{URL: url, Token: clusterToken})
	if err != nil {
		c.t.Fatal(err)
	}
	return cl
}

// script returns the configuration of an agent that says "one", runs a command of the shell and says "two".
func (c *cluster) script(command string) json.RawMessage {
	c.t.Helper()
	data, err := json.Marshal(runnerscripts.Scenario{Turns: []runnerscripts.ScenarioTurn{{Steps: []runnerscripts.ScenarioStep{
		{Text: "one"}, {Run: []string{"sh", "-c", "cd '" + c.home + "' && " + command}}, {Text: "two"},
	}}}})
	if err != nil {
		c.t.Fatal(err)
	}
	return data
}

// session creates a session in a kept local sandbox.
func (c *cluster) session(cl *remote.Client, script json.RawMessage) *remote.Session {
	c.t.Helper()
	cfg := session.Config{Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Agent: environment.Agent{Name: "script", Config: script},
	}}
	cfg.Environment.Sandbox.Keep = true
	s, err := cl.Create(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// write makes an empty file that the agent waits for.
func (c *cluster) write(name string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.home, name), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// checkOnce checks that so many queries ran, each once, and that the events have no gap.
func (c *cluster) checkOnce(s *remote.Session, queries int) {
	c.t.Helper()
	var next uint64 = 1
	counts := make(map[runnerscripts.EventType]int)
	said := ""
	for ev, err := range s.Events(c.t.Context(), 1) {
		if err != nil {
			c.t.Fatal(err)
		}
		if ev.Seq != next {
			c.t.Errorf("event %d in place of %d", ev.Seq, next)
		}
		next++
		counts[ev.Type]++
		if ev.Type == runnerscripts.TypeAgentMessage {
			chunk, err := runnerscripts.Payload[runnerscripts.ContentChunk](ev)
			if err != nil {
				c.t.Fatal(err)
			}
			said += chunk.Content.Text + " "
		}
		if ev.Type == runnerscripts.TypeSessionIdle && counts[runnerscripts.TypeQueryCompleted] == queries {
			break
		}
	}
	want := strings.Repeat("one two ", queries)
	got := fmt.Sprint(counts[runnerscripts.TypeQueryQueued], counts[runnerscripts.TypeQueryStarted], counts[runnerscripts.TypeQueryCompleted])
	if said != want || got != fmt.Sprint(queries, queries, queries) {
		c.t.Errorf("the agent said %q, want %q; queued, started and completed were %s of %d queries", said, want, got, queries)
	}
}
