package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheLimitOfOpenFilesIsNeitherTinyNorHuge(t *testing.T) {
	for name, c := range map[string]struct{ have, want unix.Rlimit }{
		"of systemd":          {unix.Rlimit{Cur: 1024, Max: 524288}, unix.Rlimit{Cur: 65536, Max: 524288}},
		"of an engine":        {unix.Rlimit{Cur: 1048576, Max: 1048576}, unix.Rlimit{Cur: 65536, Max: 524288}},
		"none":                {unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, unix.Rlimit{Cur: 65536, Max: 524288}},
		"less than a command": {unix.Rlimit{Cur: 100, Max: 2000}, unix.Rlimit{Cur: 2000, Max: 2000}},
	} {
		if got := bounded(c.have); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
