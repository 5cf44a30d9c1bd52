package docker_test

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func TestAnEngineThatIsRestarted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		test func(t *testing.T, d *testdocker.Daemon, cfg docker.Config)
	}{
		"with all that runs":    {nil, restartEndsSandboxes},
		"but nothing that runs": {[]string{"--live-restore"}, onWhileAway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, testdocker.Busybox(t))
			d := testdocker.NewDaemon(t, nil, c.args...)
			d.Load(t, cfg.Image)
			cfg.Host = d.Host()
			c.test(t, d, cfg)
		})
	}
}

func restartEndsSandboxes(t *testing.T, d *testdocker.Daemon, cfg docker.Config) {
	s := open(t, cfg)
	streamed := cfg
	streamed.NoSocket, streamed.Keep = true, true
	other := open(t, streamed)
	first, second := startAllPolitely(t, s, true), startAllPolitely(t, other, true)
	d.Stop(t)
	first.expectUnavailable(t, s)
	second.expectUnavailable(t, other)
	if state, err := s.Poll(t.Context()); err != nil || state.Status != primitives.StatusLost {
		t.Errorf("poll while there is no engine: %+v, %v", state, err)
	}
	if _, err := docker.New(t.Context(), cfg); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("new while there is no engine: %v", err)
	}
	d.Start(t)
	if state, err := s.Poll(t.Context()); err != nil || state.Running() {
		t.Errorf("poll: %+v, %v", state, err)
	}
	if got := output(t, open(t, cfg), "echo", "again"); got != "again\n" {
		t.Errorf("got %q", got)
	}
	// A kept sandbox still exists, and is removed without a guest.
	if state, err := other.Poll(t.Context()); err != nil || state.Status != primitives.StatusExited {
		t.Errorf("poll of a kept one: %+v, %v", state, err)
	}
	if err := cfg.Remove(t.Context(), other.ID()); err != nil {
		t.Error(err)
	}
}

// The socket works without the engine, the engine's own stream does not.
func onWhileAway(t *testing.T, d *testdocker.Daemon, cfg docker.Config) {
	s := open(t, cfg)
	streamed := cfg
	streamed.NoSocket = true
	other := open(t, streamed)
	u := startAll(t, other)
	d.Stop(t)
	if got := output(t, s, "echo", "on"); got != "on\n" {
		t.Errorf("over the socket: %q", got)
	}
	u.expectUnavailable(t, other)
	d.Start(t)
	// Some engines, such as 20.10, now end containers that have AutoRemove. Poll and Stat
	// must agree about it.
	state, err := s.Poll(t.Context())
	_, serr := s.Stat(t.Context(), ".")
	if err != nil || state.Running() != (serr == nil) || serr != nil && !errors.Is(serr, primitives.ErrUnavailable) {
		t.Errorf("poll: %+v, %v; stat: %v", state, err, serr)
	}
	if state, err := other.Poll(t.Context()); err != nil || state.Running() {
		t.Errorf("poll of a handle that has lost its stream: %+v, %v", state, err)
	}
	if got := output(t, open(t, cfg), "echo", "again"); got != "again\n" {
		t.Errorf("a new one: %q", got)
	}
}
