package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// asMain makes the test binary behave as envrunner, so that the race detector covers it.
const asMain = "ENVRUNNER_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	testleak.Main(m)
}

// tooLong is the timeout for a test that hangs. No passing test waits for it.
const tooLong = 3 * time.Minute

// neverMS is the grace period of an interrupt, in milliseconds, in tests whose agent stops.
const neverMS = int64(tooLong / time.Millisecond)

// runnerFile returns a copy of the real binary that every user may run.
func runnerFile(t *testing.T) string {
	t.Helper()
	built, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "envrunner")
	if err := os.WriteFile(name, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// sandbox holds the folders and the agent of a session.
type sandbox struct {
	paths primitives.Paths
	agent rs.Agent
}

func newSandbox(t *testing.T, turns ...string) *sandbox {
	t.Helper()
	s := &sandbox{paths: primitives.PathsIn(t.TempDir()), agent: rs.Agent{Name: "script"}}
	if len(turns) > 0 {
		s.play(turns...)
	}
	if err := makeFolders(s.paths); err != nil {
		t.Fatal(err)
	}
	return s
}

// play makes the agent play turns, each given as the JSON of its steps.
func (s *sandbox) play(turns ...string) {
	var b bytes.Buffer
	b.WriteString(`{"turns":[`)
	for i, steps := range turns {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"steps":` + steps + `}`)
	}
	b.WriteString(`]}`)
	s.agent.Config = b.Bytes()
}

func (s *sandbox) session() rs.Session {
	return rs.Session{Protocol: rs.Protocol, SessionID: "6f1c2d3e-0000-4000-8000-000000000001", Agent: s.agent, Paths: s.paths}
}

func (s *sandbox) file(name string) string { return filepath.Join(s.paths.Workspace, name) }

// process is a running envrunner.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *rs.Decoder
	stdout io.Closer
	stderr tail.Buffer
	seen   []rs.Event
	status chan int
}

// start runs this test binary as envrunner, with the race detector if the tests use it.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	// Without GORACE the race detector sleeps for a second at each exit.
	cmd.Env = append(os.Environ(), asMain+"=1", "GORACE=atexit_sleep_ms=0")
	return startCommand(t, cmd)
}

// startBuilt runs the binary that users get.
func startBuilt(t *testing.T, args ...string) *process {
	t.Helper()
	return startCommand(t, exec.CommandContext(t.Context(), runnerFile(t), args...))
}

func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd}
	p.cmd.WaitDelay = tooLong
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Do not use StdoutPipe: Wait would close it before everything is read.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(tooLong)); err != nil {
		t.Fatal(err)
	}
	p.stdin, p.out, p.stdout = stdin, rs.NewDecoder(r, 0), r
	p.status = make(chan int, 1)
	var wait sync.WaitGroup
	wait.Go(func() {
		_ = p.cmd.Wait() // the exit code is checked instead
		p.status <- p.cmd.ProcessState.ExitCode()
	})
	t.Cleanup(func() {
		p.stdin.Close()
		_ = p.cmd.Process.Kill()
		wait.Wait()
		r.Close()
	})
	return p
}

// converse starts execute-query.
func converse(t *testing.T, s *sandbox, prompt string) *process {
	t.Helper()
	p := start(t, rs.ExecuteQuery)
	p.send(rs.QueryRequest{Session: s.session(), Prompt: prompt, PromptID: "first", InterruptGraceMS: neverMS})
	return p
}

// send sends lines in one write: the first one may end the process.
func (p *process) send(lines ...any) {
	p.t.Helper()
	var b bytes.Buffer
	for _, v := range lines {
		if err := rs.NewEncoder(&b).Encode(v); err != nil {
			p.t.Fatal(err)
		}
	}
	if _, err := p.stdin.Write(b.Bytes()); err != nil {
		p.t.Fatalf("sending: %v, stderr %s", err, &p.stderr)
	}
}

func (p *process) next() rs.Event {
	p.t.Helper()
	ev, err := p.out.Next()
	if err != nil {
		p.t.Fatalf("reading after %s: %v; stderr: %s", types(p.seen), err, &p.stderr)
	}
	p.seen = append(p.seen, ev)
	return ev
}

// until reads to the next event of a type.
func (p *process) until(typ rs.EventType) rs.Event {
	p.t.Helper()
	for {
		ev := p.next()
		if ev.Type == typ {
			return ev
		}
		if ev.Type == rs.TypeResult {
			p.t.Fatalf("no %s came: %s, result %s", typ, types(p.seen), ev.Payload)
		}
	}
}

// end reads the result, which must be the last line, and checks the status.
func (p *process) end(status int) rs.Result {
	p.t.Helper()
	res := payload[rs.Result](p.t, p.until(rs.TypeResult))
	if ev, err := p.out.Next(); !errors.Is(err, io.EOF) {
		p.t.Errorf("after the result came %s, %v", ev.Payload, err)
	}
	if got := <-p.status; got != status {
		p.t.Errorf("exit status %d, want %d; stderr: %s", got, status, &p.stderr)
	}
	return res
}

// finish ends the input and expects success.
func (p *process) finish() []rs.Event {
	p.t.Helper()
	p.stdin.Close()
	if res := p.end(exitOK); !res.OK {
		p.t.Errorf("result is %+v", res.Error)
	}
	return p.seen
}

// call runs a script that takes one request.
func call(t *testing.T, script string, req any) (*process, rs.Result) {
	t.Helper()
	p := start(t, script)
	return p, p.call(req)
}

func (p *process) call(req any) rs.Result {
	p.t.Helper()
	p.send(req)
	p.stdin.Close()
	res := payload[rs.Result](p.t, p.until(rs.TypeResult))
	want := exitOK
	if !res.OK {
		want = exitFailed
	}
	if got := <-p.status; got != want {
		p.t.Errorf("exit status %d, want %d; stderr: %s", got, want, &p.stderr)
	}
	return res
}

func transcript(t *testing.T, s *sandbox) (rs.Transcript, []rs.Event) {
	t.Helper()
	p, res := call(t, rs.ReadTranscript, rs.TranscriptRequest{Session: s.session(), Events: true})
	var tr rs.Transcript
	if err := json.Unmarshal(res.Data, &tr); err != nil {
		t.Fatal(err)
	}
	return tr, p.seen[:len(p.seen)-1]
}

func payload[T any](t *testing.T, ev rs.Event) T {
	t.Helper()
	v, err := rs.Payload[T](ev)
	if err != nil {
		t.Fatalf("payload of %s: %v", ev.Type, err)
	}
	return v
}

func types(events []rs.Event) []rs.EventType {
	out := make([]rs.EventType, len(events))
	for i, ev := range events {
		out[i] = ev.Type
	}
	return out
}

// of returns the events of a type.
func of(events []rs.Event, typ rs.EventType) []rs.Event {
	var out []rs.Event
	for _, ev := range events {
		if ev.Type == typ {
			out = append(out, ev)
		}
	}
	return out
}

// said returns the text of an agent's messages.
func said(events []rs.Event) string {
	var b bytes.Buffer
	for _, ev := range events {
		b.WriteString(ev.Text())
	}
	return b.String()
}
