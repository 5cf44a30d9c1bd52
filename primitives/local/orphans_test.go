package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// adoptOrphans is the main function of a program that gets all orphans, as process 1 of a container
// does, and reaps all of them or none. It runs another program, and prints the number of its children
// after that.
func adoptOrphans(reaps string, args []string) int {
	self, err := os.Executable()
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err = errors.Join(err, local.AdoptOrphans(), cmd.Start()); err == nil && reaps == "none" {
		err = cmd.Wait()
	}
	for err == nil && reaps == "all" && children() > 0 {
		_, err = unix.Wait4(-1, nil, 0, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(children())
	return 0
}

// examine is the main function of a program that prints what it finds about orphans.
func examine(ctx context.Context) int {
	defer local.ReapOrphans()()
	for _, f := range (local.Provider{}).Examine(ctx, primitives.Spec{}) {
		fmt.Printf("%s %q; ", f.Subject, f.Status)
	}
	return 0
}

// awaitReaped waits until this program, which goes on, has no zombies.
func awaitReaped(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		procs, err := proctree.Snapshot()
		if err != nil {
			return err
		}
		zombie := func(p proctree.Proc) bool { return p.Zombie && p.PPID == os.Getpid() }
		if !slices.ContainsFunc(procs, zombie) {
			return nil
		}
		<-tick.C
	}
	return errors.New("a program that goes on has zombies")
}

// reapOrphans is the main function of a program that makes one sandbox of each kind, whose commands
// leave orphans.
func reapOrphans(ctx context.Context, root string) int {
	end := local.ReapOrphans()
	defer end()
	for _, cfg := range []local.Config{{Root: root}, {Root: root, Keep: true}} {
		s, err := local.New(ctx, cfg)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		const script = `(sleep 0.01 &); (setsid sleep 0.01 >/dev/null 2>&1 &); (setsid sleep 600 >/dev/null 2>&1 &)`
		if _, err = s.Run(ctx, shell(script), primitives.RunOptions{}); err == nil && cfg.Keep {
			var again *local.Sandbox
			if again, err = local.Attach(ctx, local.Config{Root: root}, s.ID()); err == nil {
				err = again.Close()
			}
		}
		if err == nil {
			err = awaitReaped(ctx)
		}
		_, terr := s.Terminate(ctx)
		if err := errors.Join(err, terr, s.Close()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

// below returns what a program prints that runs below one that gets its orphans.
func below(t *testing.T, reaps string, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"adopt", reaps}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(out))
}

func TestAProgramThatReapsOrphansLeavesNoneToProcess1(t *testing.T) {
	if left := below(t, "none", "reaporphans", t.TempDir()); left != "0" {
		t.Errorf("%s orphans are left, want 0", left)
	}
}

func TestExamineSaysWhetherOrphansAreReaped(t *testing.T) {
	for reaps, want := range map[string]string{
		"all":  `orphans ""; 0`,
		"none": `orphans "missing"; 1`,
	} {
		if got := below(t, reaps, "examine", "-"); got != want {
			t.Errorf("where the parent of orphans reaps %s of them: %s, want %s", reaps, got, want)
		}
	}
}

func TestTheLimitOfProcessesIsNamed(t *testing.T) {
	t.Parallel()
	err := local.ExplainStart(newSandbox(t, local.Config{}), syscall.EAGAIN)
	if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "docker run --init") {
		t.Errorf("a start that the kernel refuses for want of processes: %v", err)
	}
}
