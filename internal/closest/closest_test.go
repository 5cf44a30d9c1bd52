package closest_test

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/closest"
)

func TestNameIsTwoEditsAwayAtMost(t *testing.T) {
	names := []string{"memory", "network", "env"}
	for given, want := range map[string]string{
		"memroy": "memory", "MEMORY": "memory", "netwrk": "network", "memo": "memory", "nothing": "", "x": "", "": "",
	} {
		if got := closest.Name(given, names); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}
