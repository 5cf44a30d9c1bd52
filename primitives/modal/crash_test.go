package modal_test

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// crashVariable holds the path of the runner in a process that the test kills while it creates
// a sandbox.
const crashVariable = "AGENTENV_TEST_MODAL_CRASH"

func crashConfig(program string) modal.Config {
	return modal.Config{Spec: primitives.Spec{Image: "debian:12", Grace: 5 * time.Second}, Runner: program}
}

func TestAProgramThatIsKilledWhileItMakesASandboxLeavesNothing(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"ImageGetOrCreate", "SandboxCreateV2", "TaskExecStart", "TaskExecStdinWriteStream", "TaskSnapshotDirectory"} {
		t.Run(method, func(t *testing.T) {
			s := newServer(t)
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), crashVariable+"="+runner(t))
			var once sync.Once
			started, called := make(chan struct{}), make(chan struct{})
			s.Before(func(m string) error {
				if m == method {
					once.Do(func() {
						<-started
						close(called)          // first: Wait may return before Kill does
						_ = cmd.Process.Kill() // it is running: it made this call
					})
				}
				return nil
			})
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			close(started)
			err := cmd.Wait()
			select {
			case <-called:
			default:
				t.Fatalf("the program has ended before: %v", err)
			}
			s.Before(nil)
			if strings.HasPrefix(method, "Task") {
				// A command still runs: Modal's, which waits forever for the rest of the
				// runner, or the guest, which needs a minute to notice that its client is dead.
				if _, err := (modal.Config{}).GC(t.Context(), primitives.GCOptions{NoGrace: true}); err != nil {
					t.Error(err)
				}
			}
			await(t, func() bool {
				list, err := (modal.Config{}).List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return len(list) == 0
			})
		})
	}
}
