package local_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// TestMain lets the test binary run as other programs, too: the supervisor of durable commands, and
// the owner of a sandbox that a test kills.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "supervise":
			// Not os.Exit: with the race detector it sleeps for a second.
			syscall.Exit(local.Supervise(context.Background(), os.Args[2]))
		case "own":
			os.Exit(own(context.Background(), os.Args[2], os.Args[3:]))
		case "adopt":
			os.Exit(adoptOrphans(os.Args[2], os.Args[3:]))
		case "examine":
			os.Exit(examine(context.Background()))
		case "reaporphans":
			os.Exit(reapOrphans(context.Background(), os.Args[2]))
		case "reap":
			os.Exit(reap(context.Background(), os.Args[2]))
		}
	}
	testleak.Main(m)
}

// patience is how long a test waits for an expected event.
const patience = time.Minute

// newSandbox makes a sandbox that is terminated when the test is over.
func newSandbox(t testing.TB, cfg local.Config) *local.Sandbox {
	t.Helper()
	return newSandboxBy(t, local.New, cfg)
}

func newSandboxBy(t testing.TB, by func(context.Context, local.Config) (*local.Sandbox, error), cfg local.Config) *local.Sandbox {
	t.Helper()
	if cfg.Root == "" {
		cfg.Root = t.TempDir()
	}
	s, err := by(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	endAfter(t, s)
	return s
}

// endAfter terminates the sandbox when the test ends, and checks that nothing of it is left.
func endAfter(t testing.TB, s *local.Sandbox) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_, err := s.Terminate(ctx)
		if err != nil && !errors.Is(err, primitives.ErrUnavailable) {
			t.Errorf("terminate: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if left := marked(t, s.ID()); len(left) > 0 && err == nil {
			t.Errorf("processes are left: %v", left)
		}
	})
}

// marked returns the processes that carry the sandbox's mark, with their environments. To read an
// environment again is a race: a process that starts another program shows none meanwhile.
func marked(t testing.TB, id string) map[int]string {
	t.Helper()
	found := make(map[int]string)
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range environs {
		env, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(env), "AGENTENV_SANDBOX="+id) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
				found[pid] = string(env)
			}
		}
	}
	return found
}

func shell(script string) primitives.Command {
	return primitives.Command{Args: []string{"/bin/sh", "-c", script}}
}

func run(t testing.TB, s *local.Sandbox, cmd primitives.Command) primitives.RunResult {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, cmd, primitives.RunOptions{})
	if err != nil {
		t.Fatalf("run %q: %v", cmd.Args, err)
	}
	return res
}

func start(t testing.TB, s *local.Sandbox, cmd primitives.Command) primitives.Process {
	t.Helper()
	p, err := s.Exec(t.Context(), cmd)
	if err != nil {
		t.Fatalf("exec %q: %v", cmd.Args, err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func wait(t testing.TB, p primitives.Process) primitives.ExitStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	st, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return st
}

// readLine reads up to the end of a line, byte by byte, so that it consumes nothing of the next
// line.
func readLine(t testing.TB, r io.Reader) string {
	t.Helper()
	var line []byte
	for {
		var b [1]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			t.Fatalf("after %q: %v", line, err)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

// eventually waits until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("still not so: %s", what)
		}
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestRunReturnsWhatTheCommandPrintedAndHowItEnded(t *testing.T) {
	s := newSandbox(t, local.Config{})
	for _, script := range []string{"", "sleep 0.05;"} { // within and after the burst
		res := run(t, s, shell(script+"echo out; echo err >&2; exit 3"))
		if string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" {
			t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
		}
		if want := (primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited}); res.Status != want {
			t.Errorf("status %+v, want %+v", res.Status, want)
		}
	}
}

func TestRunCountsWhatIsOverTheLimitInBothPhases(t *testing.T) {
	s := newSandbox(t, local.Config{})
	for _, script := range []string{"", "sleep 0.05;"} {
		cmd := shell(script + "head -c 300000 /dev/zero; printf abcdef >&2")
		res, err := s.Run(t.Context(), cmd, primitives.RunOptions{MaxOutput: 5})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Stdout) != 5 || res.StdoutDropped != 299995 || string(res.Stderr) != "abcde" || res.StderrDropped != 1 {
			t.Errorf("stdout %d+%d, stderr %q+%d", len(res.Stdout), res.StdoutDropped, res.Stderr, res.StderrDropped)
		}
	}
}

func TestCommandsDoNotInheritTheEnvironmentOfTheHost(t *testing.T) {
	t.Setenv("FAKE_API_KEY", "s3cret")
	t.Setenv("LC_MESSAGES", "C")
	s := newSandbox(t, local.Config{Env: []string{"EXTRA=1", "LANG"}})
	res := run(t, s, primitives.Command{Args: []string{"/usr/bin/env"}, Env: []string{"MINE=a=b", "EMPTY="}})
	got := make(map[string]string)
	for line := range strings.Lines(string(res.Stdout)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[key] = value
	}
	if strings.Contains(string(res.Stdout), "s3cret") {
		t.Error("the host's secret reached the command")
	}
	want := map[string]string{
		"HOME": s.Paths().Home, "EXTRA": "1", "MINE": "a=b", "EMPTY": "", "LC_MESSAGES": "C",
		"AGENTENV_SANDBOX": s.ID(), "PATH": os.Getenv("PATH"),
	}
	for key, value := range want {
		if v, ok := got[key]; !ok || v != value {
			t.Errorf("%s is %q (%v), want %q", key, v, ok, value)
		}
	}
	if _, ok := got["LANG"]; ok {
		t.Error("LANG was to be removed")
	}
}

func TestStartErrorsSayWhatWasWrong(t *testing.T) {
	s := newSandbox(t, local.Config{})
	ws := s.Paths().Workspace
	write := func(name, content string, mode fs.FileMode) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(ws, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(ws, name)
	}
	plain := write("plain", "text", 0o644)
	orphan := write("orphan", "#!/no/such/interpreter\n", 0o755)
	bare := write("bare", "echo no first line\n", 0o755)
	bin := []string{"/bin/true"}
	tests := []struct {
		name string
		cmd  primitives.Command
		want []error
	}{
		{"no program of that name", primitives.Command{Args: []string{"no-such-program"}}, []error{primitives.ErrCommandNotFound, fs.ErrNotExist}},
		{"no program at that path", primitives.Command{Args: []string{"/no/such/program"}}, []error{primitives.ErrCommandNotFound, fs.ErrNotExist}},
		{"a path through a file", primitives.Command{Args: []string{plain + "/x"}}, []error{primitives.ErrCommandNotFound, fs.ErrNotExist}},
		{"not executable", primitives.Command{Args: []string{plain}}, []error{fs.ErrPermission}},
		{"a directory", primitives.Command{Args: []string{ws}}, []error{fs.ErrPermission, primitives.ErrIsDirectory}},
		{"interpreter missing", primitives.Command{Args: []string{orphan}}, []error{primitives.ErrCommandNotFound, fs.ErrNotExist}},
		{"no first line", primitives.Command{Args: []string{bare}}, []error{fs.ErrInvalid, unix.ENOEXEC}},
		{"folder missing", primitives.Command{Args: bin, Dir: "gone"}, []error{primitives.ErrWorkingDir, fs.ErrNotExist}},
		{"folder missing, absolute", primitives.Command{Args: bin, Dir: "/no/such/dir"}, []error{primitives.ErrWorkingDir, fs.ErrNotExist}},
		{"folder and program missing", primitives.Command{Args: []string{"./x"}, Dir: "/no/such/dir"}, []error{primitives.ErrWorkingDir, fs.ErrNotExist}},
		{"folder is a file", primitives.Command{Args: bin, Dir: plain}, []error{primitives.ErrWorkingDir, primitives.ErrNotDirectory}},
		{"folder outside", primitives.Command{Args: bin, Dir: "../home"}, []error{primitives.ErrPathEscape}},
		{"user unknown", primitives.Command{Args: bin, User: "no-such-user"}, []error{primitives.ErrUnknownUser}},
		{"group unknown", primitives.Command{Args: bin, User: "root:no-such-group"}, []error{primitives.ErrUnknownUser}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.Exec(t.Context(), tt.cmd)
			for _, want := range tt.want {
				if !errors.Is(err, want) {
					t.Errorf("%v is not %v", err, want)
				}
			}
			notDir := !errors.Is(tt.want[0], primitives.ErrWorkingDir)
			if notDir && errors.Is(err, primitives.ErrWorkingDir) && tt.name != "folder outside" {
				t.Errorf("%v blames the working directory", err)
			}
			if pe, ok := errors.AsType[*primitives.Error](err); !ok || pe.Backend != "local" || pe.Op != "exec" {
				t.Errorf("%v does not say where", err)
			}
		})
	}
}

func TestAnotherUserMayNotEnterWhatIsForbidden(t *testing.T) {
	s := newSandbox(t, local.Config{})
	if !s.Capabilities().Users {
		_, err := s.Exec(t.Context(), primitives.Command{Args: []string{"/bin/true"}, User: "0"})
		if !errors.Is(err, fs.ErrPermission) {
			t.Fatalf("another user without root: %v", err)
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, ""} { // the workspace belongs to the first user
		_, err := s.Exec(t.Context(), primitives.Command{Args: []string{"/bin/true"}, Dir: dir, User: "nobody"})
		if !errors.Is(err, primitives.ErrWorkingDir) || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "for the user 65534; make the sandbox for that user") {
			t.Errorf("forbidden folder: %v", err)
		}
	}
	res := run(t, s, primitives.Command{Args: []string{"/bin/sh", "-c", "id -un; id -G; echo $USER"}, Dir: "/", User: "nobody"})
	if lines := strings.Fields(string(res.Stdout)); len(lines) != 3 || lines[0] != "nobody" || lines[2] != "nobody" {
		t.Errorf("as nobody: %q", res.Stdout)
	}
}
