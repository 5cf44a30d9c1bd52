package local_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// own is the main function of a sandbox's owner: it makes a sandbox below root, starts the scripts,
// prints the IDs of the sandbox and of the commands, and waits to be killed. Scripts that begin
// with "durable " become durable commands. OWN_CONFIG adds to the sandbox's configuration. With
// OWN_WRITE the program is killed while it writes a file.
func own(ctx context.Context, root string, scripts []string) int {
	create := local.New
	if os.Getenv("OWN_SWEEPING") != "" {
		create = local.NewSweeping
	}
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	cfg := local.Config{Root: root, Runner: self}
	if text := os.Getenv("OWN_CONFIG"); text != "" {
		if err := json.Unmarshal([]byte(text), &cfg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	s, err := create(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.ID())
	for _, script := range scripts {
		script, durable := strings.CutPrefix(script, "durable ")
		cmd := shell(script)
		cmd.Durable = durable
		p, err := s.Exec(ctx, cmd)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(p.ID())
	}
	if os.Getenv("OWN_WRITE") != "" {
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, "the first half")
			fmt.Println("ready")
		}()
		_ = s.WriteFile(ctx, "whole", r, primitives.WriteOptions{})
	}
	fmt.Println("ready")
	<-ctx.Done()
	return 0
}

// owner is a running program that owns a sandbox.
type owner struct {
	cmd      *exec.Cmd
	sandbox  string
	commands []string
}

func startOwner(t *testing.T, sweeping bool, root string, scripts ...string) *owner {
	t.Helper()
	return startOwnerWith(t, sweeping, nil, root, scripts...)
}

func startOwnerWith(t *testing.T, sweeping bool, env []string, root string, scripts ...string) *owner {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"own", root}, scripts...)...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), env...)
	if sweeping {
		cmd.Env = append(cmd.Env, "OWN_SWEEPING=1")
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &owner{cmd: cmd}
	t.Cleanup(func() { o.kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		if o.sandbox == "" {
			o.sandbox = lines.Text()
		} else {
			o.commands = append(o.commands, lines.Text())
		}
	}
	if lines.Text() != "ready" {
		t.Fatalf("the owner did not get ready: %v", lines.Err())
	}
	return o
}

// kill kills the owner, like a crash.
func (o *owner) kill() {
	if o.cmd.ProcessState == nil {
		_ = o.cmd.Process.Kill()
		_ = o.cmd.Wait()
	}
}

func attach(t *testing.T, root, id string) *local.Sandbox {
	t.Helper()
	s, err := local.Attach(t.Context(), local.Config{Root: root}, id)
	if err != nil {
		t.Fatal(err)
	}
	endAfter(t, s)
	return s
}

// bothWays runs the test with and without control groups.
func bothWays(t *testing.T, test func(t *testing.T, sweeping bool)) {
	for _, sweeping := range []bool{false, true} {
		t.Run("sweeping="+strconv.FormatBool(sweeping), func(t *testing.T) { test(t, sweeping) })
	}
}

func TestAttachSharesASandboxWhoseOwnerLives(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		root := t.TempDir()
		o := startOwner(t, sweeping, root, "exec sleep 600")
		s := attach(t, root, o.sandbox)
		if s.ID() != o.sandbox {
			t.Errorf("id %q, want %q", s.ID(), o.sandbox)
		}
		// During execve a process shows no environment.
		lives := func() bool { return len(marked(t, o.sandbox)) > 0 }
		eventually(t, "attaching leaves the owner's command alone", lives)
		if res := run(t, s, shell("echo here")); string(res.Stdout) != "here\n" {
			t.Errorf("stdout %q", res.Stdout)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "closing leaves the owner's command alone", lives)
		again := attach(t, root, o.sandbox)
		report, err := again.Terminate(t.Context())
		if err != nil || len(report.Killed) == 0 {
			t.Errorf("terminate: %+v, %v", report, err)
		}
		if left := marked(t, o.sandbox); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestAttachEndsTheCommandsOfADeadOwner(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		root := t.TempDir()
		o := startOwner(t, sweeping, root,
			"exec sleep 600", "setsid sh -c 'trap \"\" TERM; sleep 600' & sleep 600", "durable echo on; sleep 600")
		o.kill()
		s := attach(t, root, o.sandbox)
		for pid, env := range marked(t, o.sandbox) {
			if !strings.Contains(env, o.commands[2]) {
				t.Errorf("process %d is left: %q", pid, env)
			}
		}
		p, err := s.Reattach(t.Context(), o.commands[2], primitives.Offset{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if line := readLine(t, p.Stdout()); line != "on" {
			t.Errorf("durable command printed %q", line)
		}
		if st, err := s.Poll(t.Context()); err != nil || !st.Running() {
			t.Errorf("poll: %+v, %v", st, err)
		}
	})
}

func TestAttachToWhatIsNotThere(t *testing.T) {
	root := t.TempDir()
	for _, id := range []string{"", "unknown", "../x", ".", ".."} {
		if _, err := local.Attach(t.Context(), local.Config{Root: root}, id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("attach %q: %v", id, err)
		}
	}
	gone := newSandbox(t, local.Config{Root: root})
	kept := newSandbox(t, local.Config{Root: root, LeaveFiles: true})
	for _, s := range []*local.Sandbox{gone, kept} {
		if _, err := s.Terminate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := local.Attach(t.Context(), local.Config{Root: root}, gone.ID()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	if _, err := local.Attach(t.Context(), local.Config{Root: root}, kept.ID()); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("kept: %v", err)
	}
}

func TestTerminateElsewhereIsSeenByEveryHandle(t *testing.T) {
	root := t.TempDir()
	a := newSandbox(t, local.Config{Root: root})
	b := attach(t, root, a.ID())
	p := start(t, a, shell("sleep 600"))
	if _, err := b.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := wait(t, p); st.Reason != primitives.ReasonCancelled {
		t.Errorf("status %+v", st)
	}
	if _, err := a.Exec(t.Context(), shell("true")); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("exec: %v", err)
	}
	if st, err := a.Poll(t.Context()); err != nil || st.Status != primitives.StatusTerminated {
		t.Errorf("poll: %+v, %v", st, err)
	}
	if report, err := a.Terminate(t.Context()); err != nil || len(report.Killed) > 0 {
		t.Errorf("terminate again: %+v, %v", report, err)
	}
}

func TestARemovedFolderIsALostSandbox(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+".away") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t, local.Config{})
			if err := lose(s.Paths().Session); err != nil {
				t.Fatal(err)
			}
			if st, err := s.Poll(t.Context()); err != nil || st.Status != primitives.StatusLost {
				t.Errorf("poll: %+v, %v", st, err)
			}
			if _, err := s.Exec(t.Context(), shell("true")); !errors.Is(err, primitives.ErrUnavailable) {
				t.Errorf("exec: %v", err)
			}
			if _, err := s.Run(t.Context(), shell("true"), primitives.RunOptions{}); !errors.Is(err, primitives.ErrUnavailable) {
				t.Errorf("run: %v", err)
			}
		})
	}
}

func TestAForeignWorkspaceIsUsedInPlaceAndKept(t *testing.T) {
	ws := t.TempDir()
	s := newSandbox(t, local.Config{Workspace: ws})
	run(t, s, shell("echo mine > file"))
	if _, err := s.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(ws + "/file"); err != nil || string(b) != "mine\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Stat(s.Paths().Session); !os.IsNotExist(err) {
		t.Errorf("session folder: %v", err)
	}
}

func TestNewRefusesABadConfiguration(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cfg  local.Config
		want error
	}{
		{"workspace missing", local.Config{Workspace: "/no/such/folder"}, fs.ErrNotExist},
		{"workspace is a file", local.Config{Workspace: file}, primitives.ErrNotDirectory},
		{"unknown user", local.Config{User: "no-such-user"}, primitives.ErrUnknownUser},
		{"bad environment", local.Config{Env: []string{"=x"}}, fs.ErrInvalid},
		{"root below a file", local.Config{Root: file + "/x"}, unix.ENOTDIR},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if tt.cfg.Root == "" {
				tt.cfg.Root = root
			}
			if _, err := local.New(t.Context(), tt.cfg); !errors.Is(err, tt.want) {
				t.Errorf("%v is not %v", err, tt.want)
			}
			if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestDescriptorsAreClosedOnExecWithoutTheKernelsCall(t *testing.T) {
	stray, err := unix.Dup(2)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stray)
	closing := func() bool {
		flags, err := unix.FcntlInt(uintptr(stray), unix.F_GETFD, 0)
		if err != nil {
			t.Fatal(err)
		}
		return flags&unix.FD_CLOEXEC != 0
	}
	if closing() {
		t.Fatal("the descriptor has the mark already")
	}
	if err := local.CloseEachOnExec(); err != nil || !closing() {
		t.Errorf("marked: %v, %v", closing(), err)
	}
}
