package docker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestASandboxThatIsClosedTakesNoClientFromOthers(t *testing.T) {
	t.Parallel()
	cfg := Config{Spec: primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: Provider{Pull: PullNever}, Runner: testdocker.Runner(t)}
	first, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, err := first.Terminate(context.WithoutCancel(t.Context()))
		if err := errors.Join(err, first.Close()); err != nil {
			t.Error(err)
		}
	}()
	second, err := Attach(t.Context(), Config{}, first.ID())
	if err != nil {
		t.Fatal(err)
	}
	if local := strings.HasPrefix(driverOf(first).eng.DaemonHost(), "unix://"); local != (driverOf(first).eng == driverOf(second).eng) {
		t.Errorf("that the engine is of this machine is %t, that its client is shared is not", local)
	}
	for range 2 {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}
	if state, err := first.Poll(t.Context()); err != nil || !state.Running() {
		t.Errorf("after the other handle was closed it is %+v, %v", state, err)
	}
}
