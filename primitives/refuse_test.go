package primitives_test

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestNoLimitIsNotRefused(t *testing.T) {
	none := primitives.Spec{CPUs: -1, Memory: primitives.NoSize}
	if err := none.Refuse("there is none", "cpus", "memory"); err != nil {
		t.Error(err)
	}
	some := primitives.Spec{CPUs: 1, Memory: 1 << 30}
	if err := some.Refuse("there is none", "cpus", "memory"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("limits: %v", err)
	}
}
