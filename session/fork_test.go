package session

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// forked forks a session n times. The copies are closed with the test.
func forked(t *testing.T, s *AgentSession, n int) []*AgentSession {
	t.Helper()
	copies, err := s.Fork(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		closeLater(t, c)
	}
	return copies
}

// kept returns the content of the file kept, to which each turn of memory appends.
func kept(t *testing.T, s *AgentSession) string {
	t.Helper()
	content, _ := written(t, s, "kept")
	return content
}

func inContainer(t *testing.T) environment.Sandbox {
	return environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: &docker.Provider{Pull: docker.PullNever}}
}

func TestForkedSessionsRememberAndGoSeparateWays(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*testing.T, *Config){
		"local":  func(*testing.T, *Config) {},
		"docker": func(t *testing.T, cfg *Config) { cfg.Environment.Sandbox = inContainer(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := scripted(t, memory())
			change(t, &cfg)
			cfg.Store, cfg.Metadata = store.NewMemory(), map[string]string{"title": "x"}
			s := start(t, cfg)
			converse(t, s, "in common")
			log := logOf(t, s)
			copies := forked(t, s, 2)
			of, _ := s.State(t.Context())
			if st, _ := copies[0].State(t.Context()); st.Usage != of.Usage || st.Inherited != of.Usage || st.Usage.TotalInput() == 0 {
				t.Errorf("used %+v, inherited %+v, of %+v", st.Usage, st.Inherited, of.Usage)
			}
			converse(t, s, "only here")
			for i, c := range copies {
				mine := []string{"first", "second"}[i]
				if got := converse(t, c, mine); !strings.Contains(got, "turn 2, before: in common") {
					t.Errorf("the %s said %q", mine, got)
				}
				if got := converse(t, c, "again"); !strings.Contains(got, "before: in common\n"+mine) || strings.Contains(got, "only here") {
					t.Errorf("the %s said %q", mine, got)
				}
				if got := kept(t, c); got != "1\n2\n3\n" {
					t.Errorf("the file of the %s holds %q", mine, got)
				}
				checkBranch(t, c, s, log)
			}
			if got := kept(t, s); got != "1\n2\n" {
				t.Errorf("the file of the original holds %q", got)
			}
			// A copy is a session like any other.
			again := copies[0]
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
			cfg.ID = again.ID()
			if got := converse(t, start(t, cfg), "more"); !strings.Contains(got, "before: in common\nfirst\nagain") {
				t.Errorf("opened again it said %q", got)
			}
		})
	}
}

// checkBranch checks the record and the log of a copy.
func checkBranch(t *testing.T, c, s *AgentSession, common []runnerscripts.Event) {
	t.Helper()
	rec, err := c.store.Load(t.Context(), c.ID())
	if err != nil || rec.Parent != s.ID() || rec.Metadata["title"] != "x" || rec.ID == s.ID() {
		t.Errorf("record %+v, %v", rec, err)
	}
	log := logOf(t, c)
	for i, was := range common {
		is := log[i]
		if is.Seq != was.Seq || is.Type != was.Type || string(is.Payload) != string(was.Payload) || !is.Time.Equal(was.Time) || is.SessionID != c.ID() {
			t.Errorf("event %+v became %+v", was, is)
		}
	}
	state, err := c.State(t.Context())
	if err != nil || state.ID != c.ID() || state.Environment.Status != EnvironmentReady {
		t.Errorf("state %+v, %v", state, err)
	}
	if state.Environment.ID == s.live().ID() {
		t.Error("the copy has the original's sandbox")
	}
}

// A program finds its session by these keys. A fork is another session.
func TestAForkIsNotFoundAsItsParent(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, memory())
	cfg.Store = store.NewMemory()
	cfg.Metadata = map[string]string{"title": "x", "coordinator_session": "ses_1", DelegatedBy: "parent", "delegate": "coder"}
	s := start(t, cfg)
	rec, err := cfg.Store.Load(t.Context(), forked(t, s, 1)[0].ID())
	if err != nil || len(rec.Metadata) != 1 || rec.Metadata["title"] != "x" {
		t.Errorf("the fork has %v, %v", rec.Metadata, err)
	}
}

func TestAForkWithoutASandboxMakesItsOwn(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, memory())
	s := start(t, cfg)
	fresh := forked(t, s, 1)[0]
	if got := converse(t, fresh, "hello"); !strings.Contains(got, "turn 1") {
		t.Errorf("a copy of nothing said %q", got)
	}
	converse(t, s, "in common")
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := forked(t, s, 1)[0]
	if before, err := c.Transcript(t.Context()); err != nil || !strings.Contains(before.Main, "in common") {
		t.Errorf("transcript %q, %v", before.Main, err)
	}
	if got := converse(t, c, "more"); !strings.Contains(got, "before: in common") || kept(t, c) != "1\n2\n" {
		t.Errorf("it said %q, and the file holds %q", got, kept(t, c))
	}
}

func TestASandboxThatCannotBeCopiedIsStored(t *testing.T) {
	t.Parallel()
	var made atomic.Int64
	create := environmentCreator(nil)
	s, err := open(t.Context(), scripted(t, memory()), func(ctx context.Context, cfg environment.Config) (sandbox, error) {
		made.Add(1)
		sb, err := create(ctx, cfg)
		return uncopyable{sb}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	converse(t, s, "in common")
	c := forked(t, s, 1)[0]
	if n := made.Load(); n != 1 {
		t.Errorf("%d sandboxes before the copy's first prompt", n)
	}
	if got := converse(t, c, "more"); !strings.Contains(got, "before: in common") || kept(t, c) != "1\n2\n" {
		t.Errorf("it said %q, and the file holds %q", got, kept(t, c))
	}
}

type uncopyable struct{ sandbox }

func (uncopyable) Fork(context.Context, int) ([]sandbox, error) {
	return nil, &primitives.Error{Op: "fork", Err: errors.ErrUnsupported}
}

func TestACopyLeavesTheFolderOfTheUserAlone(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, memory())
	folder := t.TempDir()
	cfg.Environment.Sandbox.Workspace = folder
	s := start(t, cfg)
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, ErrNoEnvironment) {
		t.Errorf("Fork without a sandbox: %v", err)
	}
	converse(t, s, "in common")
	c := forked(t, s, 1)[0]
	converse(t, c, "in the copy")
	// Also in the copy's next sandbox.
	if err := c.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	converse(t, c, "in the copy, again")
	if b, err := os.ReadFile(filepath.Join(folder, "kept")); string(b) != "1\n" || err != nil {
		t.Errorf("the user's file holds %q, %v", b, err)
	}
	if got := kept(t, c); got != "1\n2\n3\n" {
		t.Errorf("the copy's file holds %q", got)
	}
}

func TestForkSaysWhyItCannot(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("begun"), forever()))
	s := start(t, cfg)
	if _, err := s.Fork(t.Context(), 0); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("Fork of none: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Fork(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Fork with a cancelled context: %v", err)
	}
	turn := prompt(t, s, "wait")
	await(t, s, runnerscripts.TypeAgentMessage)
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, ErrBusy) {
		t.Errorf("Fork while a query runs: %v", err)
	}
	if err := s.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	complete(t, turn)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("Fork after Close: %v", err)
	}
}

// limited is a store that accepts a limited number of forks.
type limited struct {
	store.Store
	left atomic.Int64
}

var errFull = errors.New("the store is full")

func (l *limited) Fork(ctx context.Context, from string, last uint64, r store.Record) error {
	if l.left.Add(-1) < 0 {
		return errFull
	}
	return l.Store.Fork(ctx, from, last, r)
}

func TestForkMakesAllSessionsOrNone(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, memory())
	small := &limited{Store: store.NewMemory()}
	small.left.Store(1)
	cfg.Store = small
	s := start(t, cfg)
	converse(t, s, "in common")
	if copies, err := s.Fork(t.Context(), 3); !errors.Is(err, errFull) || copies != nil {
		t.Errorf("Fork: %v, %v", copies, err)
	}
	for rec, err := range small.List(t.Context(), store.Filter{}) {
		if err != nil || rec.ID != s.ID() {
			t.Errorf("the store has %+v, %v", rec, err)
		}
	}
	boxes, err := environment.List(t.Context(), cfg.Environment.Sandbox)
	if err != nil || len(boxes) != 1 {
		t.Errorf("sandboxes %+v, %v", boxes, err)
	}
	converse(t, s, "it goes on")
}
