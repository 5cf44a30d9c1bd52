package testmodal_test

import (
	"io"
	"testing"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/internal/testmodal"
)

func TestMain(m *testing.M) { testmodal.Main(m) }

// open makes a client of a server of the test's own.
func open(t *testing.T) (*testmodal.Server, *modal.Client) {
	t.Helper()
	s := testmodal.New(t)
	s.Setenv(t)
	mc, err := modal.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mc.Close)
	return s, mc
}

// create makes a sandbox, which ends with the server.
func create(t *testing.T, mc *modal.Client, params *modal.SandboxCreateParams) *modal.Sandbox {
	t.Helper()
	app, err := mc.Apps.FromName(t.Context(), "test", &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := mc.Sandboxes.Create(t.Context(), app, mc.Images.FromRegistry("debian:12", nil), params)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Detach() }) // its connection
	return sb
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
	stdout, err := io.ReadAll(p.Stdout)
	if err != nil || string(stdout) != "hello" {
		t.Errorf("stdout %q, %v", stdout, err)
	}
	stderr, err := io.ReadAll(p.Stderr)
	if err != nil || string(stderr) != "fault\n" {
		t.Errorf("stderr %q, %v", stderr, err)
	}
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 3 {
		t.Errorf("exit %d, %v", code, err)
	}
	if n := s.Calls("TaskExecStart"); n != 1 {
		t.Errorf("%d calls of TaskExecStart", n)
	}
	if _, err := sb.Terminate(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
