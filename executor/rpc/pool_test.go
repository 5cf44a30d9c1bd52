package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/executor/rpc"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// python is the interpreter that every user may run.
const python = "/usr/bin/python3"

// pool is a pool whose executors are the example.
type pool struct {
	*rpc.Pool
	service *rpc.Service
	sandbox primitives.EnvironmentPrimitive
	example string // the path of the example

	mu       sync.Mutex
	messages []string
	audit    []string
}

func newPool(t *testing.T, change func(*rpc.PoolConfig)) *pool {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentenv-pool-") //nolint:usetesting // t.TempDir lets no other user in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	code, err := os.ReadFile("../../examples/executor-rpc/profiles/demo/executor.py")
	p := &pool{example: filepath.Join(dir, "executor.py")}
	if err = errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(p.example, code, 0o644)); err != nil {
		t.Fatal(err)
	}
	sandbox, err := local.New(t.Context(), local.Config{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	p.sandbox = sandbox
	t.Cleanup(func() {
		if _, err := sandbox.Terminate(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	p.service = rpc.NewService(rpc.Config{
		Credential: func(_ context.Context, name string) (string, error) { return "key of " + name, nil },
		OnPermission: func(_ context.Context, q rpc.Permission) runnerscripts.PermissionDecision {
			if strings.Contains(string(q.ToolCall.RawInput), "make") {
				return q.Allow()
			}
			return q.Reject("only make")
		},
		OnMessage: func(_ context.Context, m rpc.Message) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.messages = append(p.messages, m.Session+" "+string(m.Body))
		},
		Audit: func(r rpc.Record) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.audit = append(p.audit, fmt.Sprintf("%s %s %s", r.Method, r.Outcome, r.Reason))
		},
	})
	cfg := rpc.PoolConfig{Service: p.service, Sandbox: sandbox}
	if change != nil {
		change(&cfg)
	}
	if p.Pool, err = rpc.NewPool(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the pool: %v", err)
		}
	})
	return p
}

func (p *pool) spec(session string) rpc.Spec {
	return rpc.Spec{Command: []string{python, p.example}, Grant: rpc.Grant{Session: session, Credentials: []string{"demo"}}}
}

func (p *pool) spawn(t *testing.T, spec rpc.Spec) *rpc.Process {
	t.Helper()
	e, err := p.Spawn(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// isValid reports whether a token is valid.
func (p *pool) isValid(session, token string) bool {
	_, err := p.service.Handler(session)(context.Background(), rpc.MethodPing, []byte(`{"session_token":"`+token+`"}`))
	return err == nil
}

func TestAnExecutorWorksOnAPrompt(t *testing.T) {
	t.Parallel()
	p := newPool(t, nil)
	e := p.spawn(t, p.spec("s"))
	got, err := rpc.ExecutePrompt(t.Context(), e, rpc.Prompt{SessionToken: e.Token, Prompt: "hello key:demo key:other run:make run:rm"})
	if err != nil || got.Status != "completed" || got.MessageCount != 5 || got.TokenUsage.InputTokens != 5 {
		t.Errorf("result %+v, %v", got, err)
	}
	want := []string{`s {"text": "hello"}`, `s {"key": "demo", "length": 11}`, `s {"refused": "key:other", "code": -32002}`, `s {"ran": "make"}`, `s {"refused": "run:rm", "code": -32003}`}
	if !slices.Equal(p.messages, want) {
		t.Errorf("messages %q", p.messages)
	}
	if err := e.Call(t.Context(), "dance", nil, nil); err == nil || !strings.Contains(err.Error(), "no method dance") {
		t.Errorf("an unknown method: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if p.isValid("s", e.Token) {
		t.Error("its token is still valid")
	}
	if err := rpc.Ping(t.Context(), e); !errors.Is(err, rpc.ErrClosed) {
		t.Errorf("a ping of an ended executor: %v", err)
	}
}

func TestManyExecutorsAndManyRequests(t *testing.T) {
	t.Parallel()
	p := newPool(t, nil)
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			e, err := p.Spawn(t.Context(), p.spec(fmt.Sprint("s", i)))
			if err != nil {
				t.Error(err)
				return
			}
			for range 8 {
				all.Go(func() {
					if err := rpc.Ping(t.Context(), e); err != nil {
						t.Error(err)
					}
					if r, err := rpc.ExecutePrompt(t.Context(), e, rpc.Prompt{Prompt: "a b"}); err != nil || r.MessageCount != 2 {
						t.Errorf("%+v, %v", r, err)
					}
				})
			}
		})
	}
	all.Wait()
	running := p.Executors()
	if len(running) != 3 || len(p.messages) != 3*8*2 {
		t.Errorf("%d executors, %d messages", len(running), len(p.messages))
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for _, e := range running {
		<-e.Done()
	}
	if _, err := p.Spawn(t.Context(), p.spec("late")); !errors.Is(err, rpc.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

func TestABadExecutorIsATypedErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPool(t, nil)
	for name, tt := range map[string]struct {
		script string
		is     error
		word   string
	}{
		"it exits":   {"echo the reason >&2; exit 3", rpc.ErrClosed, "3: the connection has ended; standard error ends with: the reason"},
		"no program": {"", primitives.ErrCommandNotFound, "no-such-program"},
	} {
		spec := p.spec("s")
		if spec.Command = []string{"/bin/sh", "-c", tt.script}; tt.script == "" {
			spec.Command = []string{"no-such-program"}
		}
		spec.Grant.Token = strings.Repeat("5", 64)
		if _, err := p.Spawn(t.Context(), spec); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.word) {
			t.Errorf("%s: %v", name, err)
		}
		if p.isValid("s", spec.Grant.Token) {
			t.Errorf("%s: its token is still valid", name)
		}
	}
	if left := p.Executors(); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
}

// The error has what the executor has said, if that had the time to say it.
func TestAnExecutorThatHangsIsATypedErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for timeout, said := 10*time.Millisecond, false; !said; timeout *= 2 {
		p := newPool(t, func(c *rpc.PoolConfig) { c.StartTimeout = timeout })
		spec := p.spec("s")
		spec.Command = []string{"/bin/sh", "-c", "echo waiting >&2; exec sleep 600"}
		spec.Grant.Token = strings.Repeat("5", 64)
		_, err := p.Spawn(t.Context(), spec)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "standard error ends with: ") {
			t.Fatal(err)
		}
		if p.isValid("s", spec.Grant.Token) || len(p.Executors()) != 0 {
			t.Errorf("left are its token %v, and %d executors", p.isValid("s", spec.Grant.Token), len(p.Executors()))
		}
		said = strings.Contains(err.Error(), "standard error ends with: waiting")
	}
}

// TestAnExecutorThatFloodsOrDiesEndsItsRequests proves that its host neither waits nor keeps it.
func TestAnExecutorThatFloodsOrDiesEndsItsRequests(t *testing.T) {
	t.Parallel()
	p := newPool(t, nil)
	for name, code := range map[string]string{
		"dies":               "s.recv(9999); raise SystemExit(1)",
		"sends a long line":  "s.recv(9999); s.sendall(b'x' * (9 << 20)); time.sleep(600)",
		"floods its streams": "s.recv(9999); sys.stderr.write('y' * 1000000); sys.stdout.write('z' * 1000000)",
	} {
		spec := p.spec(name)
		spec.Command = []string{python, "-c", "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['AGENTENV_EXECUTOR_SOCKET']); " + code}
		e := p.spawn(t, spec)
		if err := rpc.Ping(t.Context(), e); !errors.Is(err, rpc.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
		for slices.Contains(p.Executors(), e) { // it leaves by itself
			runtime.Gosched()
		}
		if p.isValid(name, e.Token) {
			t.Errorf("%s: its token is still valid", name)
		}
		if err := e.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
}

func TestAnExecutorThatDoesNotShutDownIsEnded(t *testing.T) {
	t.Parallel()
	p := newPool(t, nil)
	spec := p.spec("s")
	spec.Command = []string{python, "-c", `import json, os, socket, subprocess, sys
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["AGENTENV_EXECUTOR_SOCKET"])
print(os.path.dirname(os.environ["AGENTENV_EXECUTOR_SOCKET"]), file=sys.stderr, flush=True)
child = subprocess.Popen(["sleep", "600"])
for line in s.makefile():
    m = json.loads(line)
    print(m["method"], file=sys.stderr, flush=True)
    s.sendall((json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": {"child": child.pid}}) + "\n").encode())
child.wait()`}
	e := p.spawn(t, spec)
	var got struct{ Child int }
	if err := e.Call(t.Context(), rpc.MethodPing, nil, &got); err != nil || got.Child == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	said := strings.Fields(e.Stderr())
	if len(said) != 3 || said[1] != "ping" || said[2] != "shutdown" {
		t.Fatalf("it said %q", said)
	}
	if _, err := os.Stat(said[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of its socket is left: %v", err)
	}
	// Nothing may have reaped it yet.
	if state, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(got.Child)).Output(); err == nil && !strings.HasPrefix(string(state), "Z") {
		t.Errorf("its child lives on: %s", state)
	}
}

// isolated is a sandbox that does not share its files with this machine.
type isolated struct {
	primitives.EnvironmentPrimitive
}

func (isolated) Capabilities() primitives.Capabilities {
	return primitives.Capabilities{Isolation: primitives.IsolationFull}
}

func TestAPoolNeedsTheSocketsOfThisMachine(t *testing.T) {
	t.Parallel()
	if _, err := rpc.NewPool(rpc.PoolConfig{Service: rpc.NewService(rpc.Config{}), Sandbox: isolated{}}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "HTTP endpoint") {
		t.Errorf("error %v", err)
	}
}

func TestAnUnmappedUserIsAnError(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *rpc.PoolConfig) {
		c.Users = map[string]string{"empty": "", "gone": "no-such-user", "admin": "root"}
	})
	for name, word := range map[string]string{"ann": "mapped to no user", "empty": "mapped to no user", "gone": "no-such-user", "admin": "is root"} {
		spec := p.spec("s")
		spec.User = name
		if _, err := p.Spawn(t.Context(), spec); !errors.Is(err, rpc.ErrUser) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnExecutorOfAnotherUser(t *testing.T) {
	t.Parallel()
	testneed.Root(t, "it starts programs as another user")
	p := newPool(t, func(c *rpc.PoolConfig) { c.Users = map[string]string{"ann": "nobody"} })
	spec := p.spec("s")
	spec.User, spec.Dir = "ann", "/"
	// It says its user, and the modes of its socket and the folder, then becomes the example.
	spec.Command = []string{"/bin/sh", "-c", `stat -c '%U %a' "$AGENTENV_EXECUTOR_SOCKET" "${AGENTENV_EXECUTOR_SOCKET%/*}" >&2; id -un >&2; exec "$@"`, "sh", python, p.example}
	e := p.spawn(t, spec)
	if err := rpc.Ping(t.Context(), e); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if got := e.Stderr(); got != "nobody 600\nnobody 700\nnobody" {
		t.Errorf("it said %q", got)
	}

	// Root can open the socket, and is refused all the same.
	spec.Command = []string{"/bin/sh", "-c", `echo "$AGENTENV_EXECUTOR_SOCKET" > "$1"; exec sleep 600`, "sh", filepath.Join(filepath.Dir(p.example), "socket")}
	if err := os.WriteFile(spec.Command[4], nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(spec.Command[4], 0o666); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	intruding, refused := context.WithCancel(t.Context())
	defer refused()
	go func() {
		_, err := p.Spawn(ctx, spec)
		failed <- err
		refused() // an intruder that was accepted would wait
	}()
	intruder := exec.CommandContext(intruding, python, "-c", `
import socket, sys, time
while not (name := open(sys.argv[1]).read().strip()):
    time.sleep(0.01)
s = socket.socket(socket.AF_UNIX); s.connect(name)
print(s.recv(1))`, spec.Command[4])
	if out, err := intruder.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "b''" {
		t.Errorf("root got %s, %v", out, err)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.audit, func(r string) bool { return strings.HasPrefix(r, "connect refused the process belongs to the user 0") }) {
		t.Errorf("audit %q", p.audit)
	}
}
