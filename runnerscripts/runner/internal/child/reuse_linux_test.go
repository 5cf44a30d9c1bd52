package child

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
)

// apartVariable is set in a process that runs the test in a PID namespace of its own.
const apartVariable = "AGENTENV_TEST_CHILD_APART"

// The bystander gets the ID of the program as soon as the system frees it.
func TestAnotherProcessWithAReusedIDIsNotKilled(t *testing.T) {
	t.Parallel()
	testneed.Root(t, "only root may say which id is next")
	if os.Getenv(apartVariable) == "" {
		// In a new PID namespace no other process takes or reuses the IDs.
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=2m")
		cmd.Env = append(os.Environ(), apartVariable+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Fatalf("install setsid (util-linux), which this test needs: %v", err)
	}
	// The orphan holds both outputs for as long as possible, and the group is empty.
	apart := filepath.Join(t.TempDir(), "apart")
	p, lines := shell(t, Command{}, "setsid sh -c 'echo $$; : > "+apart+"; exec sleep 600' & until [ -e "+apart+" ]; do sleep 0.01; done")
	left, err := strconv.Atoi(<-lines)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
	other := takeID(t, p.PID())
	<-p.Done()
	p.Kill()
	p.Close()
	p.Signal(syscall.SIGKILL)
	other.answers()
}

// bystander is an unrelated program.
type bystander struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

// takeID starts a program that leads a group with this ID, as soon as the ID is free.
func takeID(t *testing.T, id int) *bystander {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(id-1)), 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "cat")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() { _ = in.Close(); _ = cmd.Wait() }
		if cmd.Process.Pid == id {
			t.Cleanup(end)
			return &bystander{t, in, bufio.NewReader(out)}
		}
		end()
	}
	t.Fatal("its id was never free")
	return nil
}

// answers fails the test unless the bystander is alive.
func (b *bystander) answers() {
	b.t.Helper()
	if _, err := io.WriteString(b.in, "there\n"); err != nil {
		b.t.Errorf("it was ended: %v", err)
	}
	if line, err := b.out.ReadString('\n'); err != nil || line != "there\n" {
		b.t.Errorf("it was ended: %q, %v", line, err)
	}
}
