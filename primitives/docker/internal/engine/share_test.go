package engine

import (
	"errors"
	"sync"
	"testing"

	"github.com/docker/docker/client"
)

// clientOf returns a client of an engine that need not exist.
func clientOf(t *testing.T, host, version string) *client.Client {
	t.Helper()
	t.Setenv(client.EnvOverrideAPIVersion, version)
	eng, err := Connect(host)
	if err != nil {
		t.Fatal(err)
	}
	return eng
}

// usersOf returns how many users share a client.
func usersOf(eng *client.Client) int {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	return engines.users[eng]
}

func TestClientsOfTheSameEngineAreShared(t *testing.T) {
	const here = "unix:///no/such/engine"
	first := Share(clientOf(t, here, "1.41"))
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
		got := Share(own)
		if want := map[bool]*client.Client{true: first, false: own}[c.shared]; got != want {
			t.Errorf("%s: a wrong client", name)
		}
		more, err := ShareAgain(got, c.host)
		if err != nil {
			t.Fatal(err)
		}
		if errors.Join(Release(got), Release(more)) != nil {
			t.Errorf("%s: leaving fails", name)
		}
		if got != first && usersOf(got) != 0 {
			t.Errorf("%s: %d users have not left", name, usersOf(got))
		}
	}
	if n := usersOf(first); n != 1 {
		t.Errorf("it has %d users", n)
	}
	if err := Release(first); err != nil {
		t.Error(err)
	}
	if next := clientOf(t, here, "1.41"); Share(next) != next || Release(next) != nil || usersOf(next) != 0 {
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
			eng = Share(eng)
			more, err := ShareAgain(eng, here)
			if err != nil || more != eng {
				t.Errorf("another is %p of %p, %v", more, eng, err)
			}
			if err := errors.Join(Release(eng), Release(more)); err != nil {
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
