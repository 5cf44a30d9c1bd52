package testmodal_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
)

// nap returns an argument of sleep that is unique to this process: other copies of these tests
// may run on this machine, too.
func nap() string { return fmt.Sprintf("4711.%d", os.Getpid()) }

// running returns how many sleep processes of this machine have the argument.
func running(t testing.TB, arg string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(data), "\x00"+arg+"\x00") && strings.HasPrefix(string(data), "sleep\x00") {
			n++
		}
	}
	return n
}

func TestASandboxSeesNothingOfTheMachineButItsPrograms(t *testing.T) {
	needRoot(t)
	t.Setenv("TESTMODAL_SECRET", "the machine's")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, mc := open(t)
	sb := create(t, mc, &modal.SandboxCreateParams{Env: map[string]string{"OWN": "value"}})
	if _, code := run(t, sb, "test", "-e", secret); code == 0 {
		t.Error("a file of the test is there")
	}
	if out, _ := run(t, sb, "ls", "/root", "/tmp", "/home"); out != "/home:\n\n/root:\n\n/tmp:\n" {
		t.Errorf("files of the machine: %q", out)
	}
	if out, _ := run(t, sb, "sh", "-c", "set -- /proc/[0-9]*; echo $#"); out != "2\n" { // init and the shell
		t.Errorf("%s processes", out)
	}
	out, _ := run(t, sb, "env")
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(line, "=")
		switch name {
		case "OWN", "PATH", "HOME", "MODAL_SANDBOX_ID", "MODAL_TASK_ID":
		default:
			t.Errorf("the variable %q", line)
		}
	}
	if !strings.Contains(out, "OWN=value\n") {
		t.Errorf("variables: %q", out)
	}
}

func TestSandboxesDoNotSeeEachOther(t *testing.T) {
	needRoot(t)
	_, mc := open(t)
	one, two := create(t, mc, nil), create(t, mc, nil)
	if _, code := run(t, one, "sh", "-c", "echo x > /tmp/mine; echo x > /usr/local/mine"); code != 0 {
		t.Fatalf("exit %d", code)
	}
	for _, path := range []string{"/tmp/mine", "/usr/local/mine"} {
		if _, code := run(t, two, "test", "-e", path); code == 0 {
			t.Errorf("%s is seen by the other one", path)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is this machine's", path)
		}
	}
}

func TestABlockedNetworkIsNone(t *testing.T) {
	needRoot(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, mc := open(t)
	for blocked, want := range map[bool]bool{false: true, true: false} {
		sb := create(t, mc, &modal.SandboxCreateParams{BlockNetwork: blocked})
		if _, code := run(t, sb, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port); (code == 0) != want {
			t.Errorf("blocked %v: exit %d", blocked, code)
		}
	}
}

// victim is a variable that is set in a process that creates a sandbox and waits to be killed.
// Its value is the nap of the commands in that sandbox.
const victim = "TESTMODAL_VICTIM"

func TestNothingIsLeftOfAServerThatIsKilled(t *testing.T) {
	needRoot(t)
	if os.Getenv(victim) != "" {
		sacrifice(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	tmp := t.TempDir() // also contains what the killed process leaves
	cmd.Env = append(os.Environ(), victim+"="+nap(), "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		dir, _ = strings.CutPrefix(lines.Text(), "directory ")
		if !filepath.IsAbs(dir) {
			dir = ""
		}
	}
	if dir == "" {
		t.Error("the server has no directory")
	}
	await := func(what string, met func(n int) bool) {
		deadline := time.After(time.Minute)
		for !met(running(t, nap())) {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-deadline:
				t.Fatal(what)
			}
		}
	}
	await("the commands do not run", func(n int) bool { return n == 2 }) // which a shell has only begun to start
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	await("processes are left", func(n int) bool { return n == 0 })
	next, err := testmodal.Start(t.Context(), testmodal.Options{Dir: tmp}) // Start removes stale files
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// sacrifice creates a sandbox and waits to be killed.
func sacrifice(t *testing.T) {
	s, mc := open(t)
	nap := os.Getenv(victim)
	sb := create(t, mc, &modal.SandboxCreateParams{Command: []string{"sleep", nap}})
	run(t, sb, "sh", "-c", "setsid sleep "+nap+" >/dev/null 2>&1 </dev/null &")
	_, _ = os.Stdout.WriteString("\ndirectory " + s.Dir() + "\n")
	<-t.Context().Done()
}

func TestCloseLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s, err := testmodal.Start(t.Context(), testmodal.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	mc := connect(t, s)
	create(t, mc, &modal.SandboxCreateParams{Command: []string{"sleep", nap()}})
	sb := create(t, mc, nil)
	if _, err := sb.Exec(t.Context(), []string{"sleep", nap()}, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := running(t, nap()); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := testmodal.Leftovers(); err != nil {
		t.Error(err)
	}
}
