package testmodal_test

import (
	"io"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
)

func TestMain(m *testing.M) { testmodal.Main(m) }

// open starts a server for the test and returns it with a client.
func open(t testing.TB) (*testmodal.Server, *modal.Client) {
	t.Helper()
	s := testmodal.New(t)
	return s, connect(t, s)
}

// connect returns a client of s.
func connect(t testing.TB, s *testmodal.Server) *modal.Client {
	t.Helper()
	s.Setenv(t)
	mc, err := modal.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mc.Close)
	return mc
}

// app returns the app that all tests use.
func app(t testing.TB, mc *modal.Client) *modal.App {
	t.Helper()
	app, err := mc.Apps.FromName(t.Context(), "test", &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	return app
}

// create creates a sandbox. It ends with the server.
func create(t testing.TB, mc *modal.Client, params *modal.SandboxCreateParams) *modal.Sandbox {
	t.Helper()
	sb, err := mc.Sandboxes.Create(t.Context(), app(t, mc), mc.Images.FromRegistry("debian:12", nil), params)
	if err != nil {
		t.Fatal(err)
	}
	detach(t, sb)
	return sb
}

// detach closes a sandbox's connection when the test ends.
func detach(t testing.TB, sb *modal.Sandbox) {
	t.Cleanup(func() { _ = sb.Detach() })
}

// run runs a command and returns its standard output and exit code.
func run(t testing.TB, sb *modal.Sandbox, args ...string) (stdout string, code int) {
	t.Helper()
	p, err := sb.Exec(t.Context(), args, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	code, err = p.Wait(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), code
}

// workdir returns the working directory of the sandbox's commands, which no other sandbox
// shares.
func workdir(t testing.TB, sb *modal.Sandbox) string {
	t.Helper()
	out, _ := run(t, sb, "pwd")
	return strings.TrimSpace(out)
}

// needRoot skips or fails a test of features that sandboxes have only as root on Linux.
func needRoot(t testing.TB) {
	t.Helper()
	testneed.Require(t, testmodal.Isolated(), "run this as root on Linux: only then have sandboxes namespaces")
}

func TestACommandReadsStdinAndItsOutputAndStatusAreKept(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, nil)
	p, err := sb.Exec(t.Context(), []string{"sh", "-c", "cat; echo fault >&2; exit 3"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 3 {
		t.Errorf("exit %d, %v", code, err)
	}
	stdout, err := io.ReadAll(p.Stdout)
	if err != nil || string(stdout) != "hello" {
		t.Errorf("stdout %q, %v", stdout, err)
	}
	stderr, err := io.ReadAll(p.Stderr)
	if err != nil || string(stderr) != "fault\n" {
		t.Errorf("stderr %q, %v", stderr, err)
	}
	if n := s.Calls("TaskExecStart"); n != 1 {
		t.Errorf("%d calls of TaskExecStart", n)
	}
	if n := s.Calls("TaskExecStdinWrite"); n != 2 {
		t.Errorf("%d calls of TaskExecStdinWrite, of which one is the end", n)
	}
}

func TestOutputNeverHoldsTheCommandUp(t *testing.T) {
	_, mc := open(t)
	sb := create(t, mc, nil)
	const size = 8 << 20
	p, err := sb.Exec(t.Context(), []string{"head", "-c", "8388608", "/dev/zero"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 0 { // its output is unread
		t.Fatalf("exit %d, %v", code, err)
	}
	n, err := io.Copy(io.Discard, p.Stdout)
	if err != nil || n != size {
		t.Errorf("read %d bytes of %d, %v", n, size, err)
	}
}

func TestATerminalIsOne(t *testing.T) {
	_, mc := open(t)
	sb := create(t, mc, nil)
	p, err := sb.Exec(t.Context(), []string{"sh", "-c", "test -t 0 && tty && stty size && echo $TERM; read line; echo got $line"},
		&modal.SandboxExecParams{PTY: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin, "word\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/dev/pts/", "24 80\r\n", "xterm-256color\r\n", "got word\r\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the terminal showed %q without %q", out, want)
		}
	}
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 0 {
		t.Errorf("exit %d, %v", code, err)
	}
}

func TestASandboxWithAGPUIsOneOfTheOlderKind(t *testing.T) {
	s, mc := open(t)
	sb := create(t, mc, &modal.SandboxCreateParams{GPU: "T4", Command: []string{"sh", "-c", "read line; echo got $line"}})
	if _, err := io.WriteString(sb.Stdin, "word\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(sb.Stdout)
	if err != nil || string(out) != "got word\n" {
		t.Errorf("the entrypoint wrote %q, %v", out, err)
	}
	if code, err := sb.Wait(t.Context(), nil); err != nil || code != 0 {
		t.Errorf("exit %d, %v", code, err)
	}
	other := create(t, mc, &modal.SandboxCreateParams{GPU: "T4", Name: "older"})
	if out, code := run(t, other, "echo", "hi"); out != "hi\n" || code != 0 {
		t.Errorf("a command: %q, %d", out, code)
	}
	found, err := mc.Sandboxes.FromName(t.Context(), "test", "older", nil)
	if err != nil || found.SandboxID != other.SandboxID {
		t.Errorf("found %v, %v", found, err)
	}
	if n := s.Calls("SandboxCreate"); n != 2 {
		t.Errorf("%d calls of the older method", n)
	}
}
