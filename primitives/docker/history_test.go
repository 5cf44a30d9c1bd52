package docker_test

import (
	"errors"
	"io/fs"
	"net/http/httputil"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// forgetful returns the address of a proxy to the engine that reports no events.
func forgetful(t *testing.T) string {
	t.Helper()
	return standIn(t, toEngine(t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			if strings.HasSuffix(r.Out.URL.Path, "/events") {
				query := r.Out.URL.Query()
				query.Set("until", "86400") // in 1970
				r.Out.URL.RawQuery = query.Encode()
			}
		},
		FlushInterval: -1,
	}))
}

func TestHistoryOfAContainerWhoseEventsAreLost(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	cfg.Keep = true
	s := open(t, cfg)
	eng := testdocker.Engine(t)
	if err := eng.ContainerKill(t.Context(), s.ID(), "KILL"); err != nil {
		t.Fatal(err)
	}
	forgot := docker.Provider{Host: forgetful(t)}
	list, err := forgot.History(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, i := range list {
		if i.Time.IsZero() || i.OutOfMemory {
			t.Errorf("%+v", i)
		}
		said = append(said, i.Message)
	}
	if got := strings.Join(said, "; "); got != "made from the image "+cfg.Image+"; started; ended with status 137 (signal 9)" {
		t.Errorf("said %q", got)
	}
	if err := (docker.Config{}).Remove(t.Context(), s.ID()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if list, err := forgot.History(t.Context(), s.ID()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a container that has gone: %+v, %v", list, err)
	}
}
