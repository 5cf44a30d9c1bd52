package docker_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// A kill must not count as one for memory: a higher limit would not help.
func TestAContainerThatIsKilledAfterACommandUsedUpTheMemory(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep %v", keep), func(t *testing.T) {
			t.Parallel()
			cfg := config(t, testdocker.Busybox(t))
			cfg.Memory, cfg.Keep = 64<<20, keep
			s := open(t, cfg)
			res := script(t, s, `x=$(head -c 100000000 /dev/zero | busybox tr '\0' x); echo ${#x}`)
			if res.Status.Reason != primitives.ReasonOOM {
				t.Fatalf("there is room: %+v", res)
			}
			if got := output(t, s, "echo", "fine"); got != "fine\n" {
				t.Fatalf("got %q", got)
			}
			eng := testdocker.Engine(t)
			endNow(t, eng, s.ID())
			if _, err := s.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrUnavailable) || !errors.Is(err, os.ErrProcessDone) ||
				strings.Contains(err.Error(), "memory") || strings.Contains(err.Error(), os.ErrProcessDone.Error()) {
				t.Errorf("got %v", err)
			}
			state, err := s.Poll(t.Context())
			if err != nil || state.Status != primitives.StatusExited || state.Exit.Reason != primitives.ReasonSignaled {
				t.Errorf("poll: %+v, %v", state, err)
			}
			if !keep {
				return
			}
			if found, err := eng.ContainerInspect(t.Context(), s.ID()); err != nil || found.State.Status != container.StateExited {
				t.Fatalf("the container: %+v, %v", found, err)
			}
			_, err = docker.Attach(t.Context(), cfg, s.ID())
			if !errors.Is(err, os.ErrProcessDone) || strings.Contains(err.Error(), "because it had used up") || strings.Contains(err.Error(), os.ErrProcessDone.Error()) {
				t.Errorf("attach: %v", err)
			}
		})
	}
}
