package environment

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// pool returns a pool that is closed at the end of the test.
func pool(t *testing.T, cfg Config) *Pool {
	t.Helper()
	p, err := NewPool(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the pool: %v", err)
		}
	})
	return p
}

// full waits until all of a pool's sandboxes are ready.
func full(t *testing.T, p *Pool) {
	t.Helper()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.Ready() < p.cfg.Pool.Size {
		select {
		case <-tick.C:
		case <-patience.C:
			t.Fatalf("%d sandboxes are ready", p.Ready())
		}
	}
}

func createFrom(t *testing.T, p *Pool, cfg Config) *Environment {
	t.Helper()
	env, err := p.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	return env
}

func TestAPoolWithoutAnAgentTakesThatOfEachEnvironment(t *testing.T) {
	p := pool(t, Config{Sandbox: sandbox(t), Pool: PoolConfig{Size: 2}})
	full(t, p)
	if got := say(t, createFrom(t, p, Config{Agent: remembering(t)}), "hello"); !strings.Contains(got, "turn 1 after:") {
		t.Errorf("the first agent said %q", got)
	}
	other := Agent{Name: "command", Command: []string{"sh", "-c", "cat >/dev/null; echo from the other agent"}, Config: []byte(`{"type":"custom"}`)}
	if got := say(t, createFrom(t, p, Config{Agent: other}), "hello"); !strings.Contains(got, "from the other agent") {
		t.Errorf("the second agent said %q", got)
	}
}

func TestAPoolHandsOutWhatIsReady(t *testing.T) {
	for name, box := range boxes(t) {
		t.Run(name, func(t *testing.T) {
			p := pool(t, Config{Sandbox: box, Pool: PoolConfig{Size: 1}, Agent: Agent{Name: "script"}})
			full(t, p)
			waiting := peek(p)
			env := createFrom(t, p, Config{
				Agent: remembering(t), SessionID: "the-session", Workspace: []Source{{Files: []File{{Path: "f", Content: "1"}}}},
			})
			if env.ID() != waiting {
				t.Errorf("it handed out %s, and %s was ready", env.ID(), waiting)
			}
			if got := say(t, env, "hello"); env.SessionID() != "the-session" || !strings.Contains(got, "turn 1 after:") {
				t.Errorf("session %s said %q", env.SessionID(), got)
			}
			put(t, env, "f", "2")
			if got := changes(t, env); got != "modified f," {
				t.Errorf("changes: %s", got)
			}
			full(t, p) // the sandbox is replaced
			other := createFrom(t, p, Config{})
			if files, err := other.WorkspaceFiles(t.Context(), FilesOptions{}); err != nil || len(files) > 0 || other.ID() == env.ID() {
				t.Errorf("the next one is %s and has %v, %v", other.ID(), files, err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if err := other.Healthy(t.Context()); err != nil {
				t.Errorf("an environment ended with its pool: %v", err)
			}
			list, err := List(t.Context(), box)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range list {
				if i.ID != env.ID() && i.ID != other.ID() && name == "local" {
					t.Errorf("left by the pool: %+v", i)
				}
			}
		})
	}
}

// peek returns the ID of the sandbox that is handed out next.
func peek(p *Pool) string {
	w := <-p.ready
	p.ready <- w // nothing else uses the pool, so the order is kept
	return w.ID()
}

func TestAPoolHandsOutNothingDead(t *testing.T) {
	box := sandbox(t)
	p := pool(t, Config{Sandbox: box, Pool: PoolConfig{Size: 2}})
	full(t, p)
	dead := peek(p)
	w := <-p.ready
	if w.ID() == dead {
		p.ready <- w
		w = <-p.ready
	}
	// Another program ends both.
	for _, id := range []string{dead, w.ID()} {
		if err := Remove(t.Context(), box, id); err != nil {
			t.Fatal(err)
		}
	}
	p.ready <- w
	env := createFrom(t, p, Config{})
	if err := env.Healthy(t.Context()); err != nil || env.ID() == dead || env.ID() == w.ID() {
		t.Errorf("it handed out %s: %v", env.ID(), err)
	}
}

func TestAnEmptyPoolMakesWhatIsAskedFor(t *testing.T) {
	p := pool(t, Config{Sandbox: sandbox(t), Pool: PoolConfig{Size: 1}})
	var all sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		all.Go(func() {
			env, err := p.Create(t.Context(), Config{})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = env.ID()
			if err := env.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id] {
			t.Errorf("sandbox %s was handed out twice", id)
		}
		seen[id] = true
	}
}

func otherBlock(s Sandbox) Sandbox {
	return withBlock(s, func(p *local.Provider) { p.Root += "-other" })
}

func TestAPoolRefusesAWrongConfiguration(t *testing.T) {
	box := sandbox(t)
	named := container(t)
	named.Name = "one"
	for name, cfg := range map[string]Config{
		"no size":       {Sandbox: box},
		"negative size": {Sandbox: box, Pool: PoolConfig{Size: -1}},
		"negative max":  {Sandbox: box, Pool: PoolConfig{Max: -1}},
		"no sandbox":    {Pool: PoolConfig{Size: 1}},
		"kept":          {Sandbox: toKeep(box), Pool: PoolConfig{Size: 1}},
		"one name":      {Sandbox: named, Pool: PoolConfig{Size: 1}},
		"one session":   {Sandbox: box, Pool: PoolConfig{Size: 1}, SessionID: "s"},
		"one recording": {Sandbox: box, Pool: PoolConfig{Size: 1}, Record: filepath.Join(t.TempDir(), "r")},
	} {
		if p, err := NewPool(t.Context(), cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	if _, err := Create(t.Context(), Config{Sandbox: box, Pool: PoolConfig{Size: 1}}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "NewPool") {
		t.Errorf("Create with a pool: %v", err)
	}
	free := pool(t, Config{Sandbox: box, Pool: PoolConfig{Size: 1}})
	if _, err := free.Create(t.Context(), Config{Agent: Agent{Name: "clade"}}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "did you mean claude") {
		t.Errorf("Create with an unknown agent: %v", err)
	}
	own := Config{Sandbox: box, Pool: PoolConfig{Size: 1}, Agent: Agent{Name: "script"}}
	own.Sandbox = withBlock(box, func(p *local.Provider) {
		p.Runner = func(context.Context, string, string) (string, error) { return "", nil }
	})
	p := pool(t, own)
	if cfg, err := p.adjust(t.Context(), own); err != nil || cfg.Sandbox.Provider != own.Sandbox.Provider {
		t.Errorf("its own configuration: %v", err)
	}
	for name, cfg := range map[string]Config{
		"another sandbox": {Sandbox: Sandbox{Type: "local", Spec: primitives.Spec{User: "x"}}},
		"another pool":    {Pool: PoolConfig{Size: 2}},
		"another maximum": {Pool: PoolConfig{Max: 2}},
		"another runner":  {Runner: "/bin/true"},
		"another block":   {Sandbox: otherBlock(own.Sandbox)},
		"another agent":   {Agent: Agent{Name: "claude"}},
		"kept":            {Sandbox: Sandbox{Spec: primitives.Spec{Keep: true}}},
		"bad workspace":   {Workspace: []Source{{}}},
	} {
		if _, err := p.Create(t.Context(), cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	createFrom(t, p, own) // as package session does, which knows no pool
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if _, err := p.Create(ctx, Config{}); !errors.Is(err, enough) {
		t.Errorf("with a cancelled context: %v", err)
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if _, err := p.Create(t.Context(), Config{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A field of NewPool that was ignored in silence lost a budget.
func TestAPoolPassesOnOrRefusesEachField(t *testing.T) {
	t.Setenv("POOL_TEST_KEY", "a key of a model")
	own := Config{
		Sandbox: sandbox(t), Pool: PoolConfig{Max: 1}, Agent: Agent{Name: "script"},
		Credentials: map[string]Credential{"anthropic": {Env: "POOL_TEST_KEY"}}, Budget: Budget{Query: Limits{USD: 1}},
		Models: ModelPolicy{Allow: []string{"m"}}, Profile: Profile{SystemPrompt: "be brief"}, IgnoreChanges: []string{"*.o"}, Checkpoints: Checkpoints{MaxSize: 1},
		Permissions:      permission.Rules{Allow: []string{"Bash(git *)"}},
		PermissionLimits: permission.Rules{Deny: []string{"Bash(rm *)"}},
		Coordinator:      Coordinator{URL: "http://127.0.0.1:1", Profile: "p"},
		Delegation:       Delegation{Max: 1},
		AgentTools:       func(context.Context, Delegator) (AgentTools, error) { return nil, nil },
		Trust:            true, OnPermission: AllowAll, PermissionTimeout: time.Minute, Raw: true,
		Runner: "/bin/true", Scripts: Scripts{ReadTranscript: []string{"true"}}, Progress: func(string) {}, Logger: hclog.NewNullLogger(),
	}
	other := map[string]Config{
		"Name": {Name: "n"}, "Workspace": {Workspace: []Source{{Folder: &Folder{Path: t.TempDir()}}}}, "Session": {Session: SessionState{User: "ada"}},
		"SessionID": {SessionID: "s"}, "Record": {Record: filepath.Join(t.TempDir(), "r")},
	}
	p := pool(t, own)
	got, err := p.adjust(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range reflect.TypeFor[Config]().NumField() {
		name := reflect.TypeFor[Config]().Field(i).Name
		bad, refused := other[name]
		bad.Sandbox, bad.Pool = own.Sandbox, own.Pool
		switch {
		case refused:
			if _, err := NewPool(t.Context(), bad); !errors.Is(err, ErrConfig) {
				t.Errorf("%s: %v", name, err)
			}
		case name == "Pool", name == "Replay", name == "Deliver": // checked below
		case reflect.ValueOf(own).Field(i).IsZero():
			t.Errorf("%s: the test has no value for it", name)
		case reflect.ValueOf(got).Field(i).IsZero():
			t.Errorf("%s is not passed on", name)
		}
	}
	mine := Config{Budget: Budget{Query: Limits{USD: 2}}, Agent: Agent{Env: map[string]string{"A": "b"}}}
	if got, err := p.adjust(t.Context(), mine); err != nil || !reflect.DeepEqual(got.Budget, mine.Budget) || got.Agent.Name != "script" || got.Agent.Env["A"] != "b" {
		t.Errorf("what an environment has of its own: %+v, %v", got, err)
	}
	played := pool(t, Config{Sandbox: own.Sandbox, Pool: own.Pool, Replay: filepath.Join(t.TempDir(), "r")})
	if got, err := played.adjust(t.Context(), Config{Agent: Agent{Name: "script"}}); err != nil || got.Replay == "" {
		t.Errorf("Replay is not passed on: %v", err)
	}
	delivering := pool(t, Config{Sandbox: own.Sandbox, Pool: own.Pool, Credentials: own.Credentials, Deliver: []string{"anthropic"}})
	executor := Agent{Name: "command", Command: []string{"x"}, Config: json.RawMessage(`{"rpc": true}`)}
	if got, err := delivering.adjust(t.Context(), Config{Agent: executor}); err != nil || len(got.Deliver) != 1 {
		t.Errorf("Deliver is not passed on: %v", err)
	}
}

func TestAPoolThatCannotMakeSandboxesSaysSoAndWaitsEverLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no engine")
		var tries atomic.Int64
		p := newPool(t.Context(), Config{Pool: PoolConfig{Size: 1}}, func(context.Context) (primitives.EnvironmentPrimitive, error) {
			tries.Add(1)
			return nil, broken
		}, time.Second)
		time.Sleep(time.Hour) // in the test's own clock
		// The pool tries after 1, 2, 4, ... 32 seconds, then once a minute.
		if n := tries.Load(); n < 60 || n > 70 {
			t.Errorf("%d tries in an hour", n)
		}
		if _, err := p.Create(t.Context(), Config{}); !errors.Is(err, broken) {
			t.Errorf("Create: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAPoolDoesNotWaitForASandboxThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		p := newPool(t.Context(), Config{Pool: PoolConfig{Size: 1}}, func(context.Context) (primitives.EnvironmentPrimitive, error) {
			return &stuck{hangs: made.Add(1) == 1}, nil
		}, time.Second)
		synctest.Wait()
		begun := time.Now()
		w, _, err := p.take(t.Context())
		if err != nil || w.(*stuck).hangs {
			t.Errorf("it handed out %+v, %v", w, err)
		}
		if waited := time.Since(begun); waited != aliveTimeout {
			t.Errorf("it waited %v", waited)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// stuck is a sandbox that may not answer.
type stuck struct {
	primitives.EnvironmentPrimitive
	hangs bool
}

func (s *stuck) ID() string              { return "stuck" }
func (s *stuck) Paths() primitives.Paths { return primitives.PathsIn("/s") }
func (s *stuck) Close() error            { return nil }

func (s *stuck) Stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	if s.hangs {
		<-ctx.Done()
		return primitives.FileInfo{}, ctx.Err()
	}
	return primitives.FileInfo{Path: name, Mode: fs.ModeDir | 0o755}, nil
}

func (s *stuck) Terminate(context.Context) (primitives.TerminateReport, error) {
	return primitives.TerminateReport{}, nil
}

func TestAPoolOpensNoMoreThanItsMaximumAtOnce(t *testing.T) {
	p := pool(t, Config{Sandbox: sandbox(t), Pool: PoolConfig{Max: 2}, Agent: Agent{Name: "script"}})
	var open, most atomic.Int64
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			env, err := p.Create(t.Context(), Config{})
			if err != nil {
				t.Error(err)
				return
			}
			n := open.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			_, err = env.Exec(t.Context(), "true")
			open.Add(-1)
			if err := errors.Join(err, env.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n < 1 || n > 2 {
		t.Errorf("%d environments were open at once, want up to 2", n)
	}
}

func TestAWaitForAFullPoolEndsWithItsContextAndWithThePool(t *testing.T) {
	p := pool(t, Config{Sandbox: sandbox(t), Pool: PoolConfig{Max: 1}})
	env := createFrom(t, p, Config{})
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := p.Create(ctx, Config{}); !errors.Is(err, cause) {
		t.Errorf("a context that is done: %v, want its cause", err)
	}
	waiting := make(chan error)
	go func() {
		_, err := p.Create(t.Context(), Config{})
		waiting <- err
	}()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAFailedCreationMakesRoomInThePool(t *testing.T) {
	p := pool(t, Config{Sandbox: sandbox(t), Pool: PoolConfig{Max: 1}})
	for range 2 {
		if _, err := p.Create(t.Context(), Config{Workspace: []Source{{Folder: &Folder{Path: "/no/such/folder"}}}}); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	createFrom(t, p, Config{})
}
