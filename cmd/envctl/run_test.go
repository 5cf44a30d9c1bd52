package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// alone gives the test its own sandboxes and checks that none is left.
func alone(t *testing.T) {
	t.Helper()
	runner, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, ".cache"))
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, ".local", "state"))
	t.Setenv(bundle.ExplicitVariable, runner)
	t.Cleanup(func() { checkNothingLeft(t, home) })
}

// file writes a file of the test and returns its path.
func file(t *testing.T, name, content string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// hooked is a writer that calls hook with everything written so far. When hook returns false,
// Write fails with EPIPE.
type hooked struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	hook func(text string) bool
}

func (h *hooked) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Write(b)
	if h.hook != nil && !h.hook(h.buf.String()) {
		return 0, syscall.EPIPE
	}
	return len(b), nil
}

const asks = `{"turns":[{"steps":[{"ask":{"write":{"path":"asked.txt","content":"x"}}}]}]}`

func TestAnAnswerNeedsNoLineEnd(t *testing.T) {
	alone(t)
	var out, errOut bytes.Buffer
	code := Execute(t.Context(), strings.NewReader("y"), &out, &errOut,
		[]string{"run", "--permission", "ask", "--scenario", file(t, "ask.json", asks), "--patch", "-", "go"})
	if code != exitOK || !strings.Contains(out.String(), "b/asked.txt") {
		t.Errorf("exit status %d\n%s%s", code, &out, &errOut)
	}
}

func TestThePatchIsRefusedBeforeTheAgentHasWorked(t *testing.T) {
	alone(t)
	link := filepath.Join(t.TempDir(), "fix.patch")
	if err := os.Symlink("elsewhere", link); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--json", "--patch", "-"},
		{"--patch", link}, // of a sandbox, perhaps
	} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, append(append([]string{"run"}, args...), "go"))
		if code != exitUsage || out.Len() > 0 || !strings.Contains(errOut.String(), "--patch") {
			t.Errorf("%q: exit status %d\n%s%s", args, code, &out, &errOut)
		}
	}
}

func TestASourceThatMakesNoSenseIsAUsageError(t *testing.T) {
	alone(t)
	var out, errOut bytes.Buffer
	if code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, []string{"run", "--git=-x", "go"}); code != exitUsage {
		t.Errorf("exit status %d, want %d", code, exitUsage)
	}
	if !strings.Contains(errOut.String(), "must not begin") {
		t.Errorf("the reason is not told:\n%s", &errOut)
	}
}

func TestAReaderThatLeavesEndsTheRun(t *testing.T) {
	alone(t)
	lines := 0
	out := &hooked{hook: func(string) bool { lines++; return lines < 2 }}
	var errOut bytes.Buffer
	if code := Execute(t.Context(), strings.NewReader(""), out, &errOut, []string{"run", "--json", "go"}); code != exitNoReader || errOut.Len() > 0 {
		t.Errorf("exit status %d, want %d as of SIGPIPE\n%s", code, exitNoReader, &errOut)
	}
}

func TestProgressIsShownWhilePreparing(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	s := startOnTerminal(t, "run", "--config", file(t, "c.yaml",
		`scripts: {setup_session: [sh, -c, 'cat >/dev/null; until [ -e `+gate+` ]; do sleep 0.05; done; echo "{\"type\":\"result\",\"ok\":true}"; exit 1']}`), "go")
	s.wait("starting the sandbox ") // the time may be more than 2 s when it is drawn
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Error(err)
	}
	if code := s.end(); code != exitFailure || strings.Contains(s.seen.String(), "starting") {
		t.Errorf("exit status %d; the screen shows:\n%s", code, &s.seen)
	}
}

// What does not end by itself must not keep envctl alive: a second signal ends it.
func TestASecondSignalEndsEnvctlWhateverRuns(t *testing.T) {
	exited := make(chan interrupted, 1)
	ctx, hurry := interrupts(0, func(why interrupted) { exited <- why }, syscall.SIGUSR1)
	kill := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	kill()
	<-ctx.Done()
	select {
	case <-hurry:
		t.Error("one signal does not wait")
	case <-exited:
		t.Error("one signal exits")
	default:
	}
	kill()
	<-hurry
	if why := <-exited; why.code() != 128+int(syscall.SIGUSR1) {
		t.Errorf("it exits with %v", why)
	}
}

func TestAnEngineThatDoesNotAnswerDoesNotHideOtherSandboxes(t *testing.T) {
	alone(t)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("DOCKER_HOST", "unix://"+l.Addr().String())
	var out, errOut bytes.Buffer
	code := Execute(t.Context(), nil, &out, &errOut, []string{"ls"})
	if s := errOut.String(); code != exitFailure || !strings.Contains(s, "no docker sandboxes are listed") || strings.Contains(s, "http:") {
		t.Errorf("exit status %d\n%s", code, s)
	}
}

// broken is a process whose sandbox is lost, and whose output ends with Close.
type broken struct {
	primitives.Process
	r *io.PipeReader
	w *io.PipeWriter
}

func (b broken) Stdin() io.WriteCloser { return b.w }
func (b broken) Stdout() io.ReadCloser { return b.r }
func (b broken) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }
func (b broken) Close() error          { return b.w.CloseWithError(primitives.ErrUnavailable) }
func (b broken) Wait(context.Context) (primitives.ExitStatus, error) {
	return primitives.ExitStatus{}, primitives.ErrUnavailable
}

func TestExecReturnsAfterItsStreamsHaveEnded(t *testing.T) {
	r, w := io.Pipe()
	in, hold := io.Pipe()
	defer hold.Close()
	var out bytes.Buffer // the race detector sees a write that comes too late
	f := &execFlags{target: target{app: newApp(in, &out, io.Discard)}}
	if _, err := f.connect(t.Context(), broken{r: r, w: w}); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	out.Reset()
}

func TestASandboxThatDamagedItsRecordCanBeRemoved(t *testing.T) {
	alone(t)
	var id, errOut bytes.Buffer
	if code := Execute(t.Context(), nil, &id, &errOut, []string{"create"}); code != exitOK {
		t.Fatalf("exit status %d\n%s", code, &errOut)
	}
	name := strings.TrimSpace(id.String())
	for _, args := range [][]string{{"exec", name, "--", "sh", "-c", "echo broken > $HOME/../app/environment.json"}, {"rm", name}} {
		if code := Execute(t.Context(), strings.NewReader(""), io.Discard, &errOut, args); code != exitOK {
			t.Errorf("%q: exit status %d\n%s", args, code, &errOut)
		}
	}
}

func TestAnEmptyWorkspaceIsAnnounced(t *testing.T) {
	const announced = "the workspace is empty (--folder . copies this folder)"
	config := file(t, "acp.yaml", "sandbox: local\nagent: {name: acp, command: [/no/such/agent]}\n")
	s := startOnTerminal(t, "run", "-c", config, "hi")
	s.wait(announced)
	if code := s.end(); code == exitOK {
		t.Error("an agent that is not there has run")
	}
	s = startOnTerminal(t, "run", "-c", config, "--folder", t.TempDir(), "hi")
	s.end()
	if strings.Contains(s.seen.String(), announced) {
		t.Errorf("it is announced with a folder:\n%s", &s.seen)
	}
}
