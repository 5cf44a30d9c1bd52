package local_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// reap is the main function of a program that serves one sandbox and reaps its orphans. A command
// leaves processes behind that clear their environment: one ends a little later, one after the
// program has searched meanwhile, and one stays. The program prints its number of children after
// the first two have ended, and after Terminate.
func reap(ctx context.Context, root string) int {
	s, err := local.NewSweeping(ctx, local.Config{Root: root, ReapOrphans: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.Close()
	const script = `(env -i setsid /bin/sleep 0.2 >/dev/null 2>&1 &) ; (env -i setsid /bin/sleep 1.5 >/dev/null 2>&1 &) ; (env -i setsid /bin/sleep 600 >/dev/null 2>&1 &)`
	if _, err := s.Run(ctx, shell(script), primitives.RunOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	deadline := time.After(time.Minute)
	for n := 3; n > 1; n = children() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			return 2
		}
	}
	// The program must reap a child that it starts itself.
	if err := exec.Command("/bin/sh", "-c", "exit 0").Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	report, err := s.Terminate(ctx)
	if err != nil || len(report.Killed) != 1 {
		fmt.Fprintln(os.Stderr, report, err)
		return 4
	}
	if err := s.Close(); err != nil {
		return 5
	}
	fmt.Println(children())
	return 0
}

// children counts this program's children, including zombies.
func children() int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	n := 0
	for _, name := range stats {
		b, _ := os.ReadFile(name)
		_, rest, _ := strings.Cut(string(b), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == fmt.Sprint(os.Getpid()) {
			n++
		}
	}
	return n
}

func TestReapOrphansLeavesNeitherZombiesNorEscapees(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "reap", t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "0" {
		t.Errorf("children left: %q, %v", out, err)
	}
}
