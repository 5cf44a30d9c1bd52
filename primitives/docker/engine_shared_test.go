package docker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
)

// clientOf is a client of an engine that need not exist.
func clientOf(t *testing.T, host, version string) *client.Client {
	t.Helper()
	t.Setenv(client.EnvOverrideAPIVersion, version)
	eng, err := connect(host)
	if err != nil {
		t.Fatal(err)
	}
	return eng
}

// usersOf is how many share a client.
func usersOf(eng *client.Client) int {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	return engines.users[eng]
}

func TestClientsOfTheSameEngineAreShared(t *testing.T) {
	const here = "unix:///no/such/engine"
	first := share(clientOf(t, here, "1.41"))
	for name, c := range map[string]struct {
		host, version string
		shared        bool
	}{
		"same":            {here, "1.41", true},
		"another version": {here, "1.44", false},
		"another socket":  {here + "2", "1.41", false},
		"another machine": {"tcp://127.0.0.1:1", "1.41", false},
	} {
		own := clientOf(t, c.host, c.version)
		got := share(own)
		if want := map[bool]*client.Client{true: first, false: own}[c.shared]; got != want {
			t.Errorf("%s: a wrong client", name)
		}
		more, err := another(got, c.host)
		if err != nil {
			t.Fatal(err)
		}
		if errors.Join(leave(got), leave(more)) != nil {
			t.Errorf("%s: leaving fails", name)
		}
		if got != first && usersOf(got) != 0 {
			t.Errorf("%s: %d users have not left", name, usersOf(got))
		}
	}
	if n := usersOf(first); n != 1 {
		t.Errorf("it has %d users", n)
	}
	if err := leave(first); err != nil {
		t.Error(err)
	}
	if next := clientOf(t, here, "1.41"); share(next) != next || leave(next) != nil || usersOf(next) != 0 {
		t.Error("a client that nobody uses any more is shared")
	}
}

func TestManyUsersShareAClientAtOnce(t *testing.T) {
	const here = "unix:///no/such/engine/at/once"
	clients := make([]*client.Client, 16)
	for i := range clients {
		clients[i] = clientOf(t, here, "1.41")
	}
	var all sync.WaitGroup
	for _, eng := range clients {
		all.Go(func() {
			eng = share(eng)
			more, err := another(eng, here)
			if err != nil || more != eng {
				t.Errorf("another is %p of %p, %v", more, eng, err)
			}
			if err := errors.Join(leave(eng), leave(more)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	engines.mu.Lock()
	defer engines.mu.Unlock()
	if eng := engines.clients[engineKey{here, "1.41"}]; eng != nil {
		t.Errorf("%d users are left", engines.users[eng])
	}
}

func TestASandboxThatIsClosedTakesNoClientFromOthers(t *testing.T) {
	cfg := Config{Image: testdocker.Busybox(t), Pull: PullNever, Runner: testdocker.Runner(t), Network: "none", Labels: testdocker.Labels(), GraceSeconds: 10}
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
