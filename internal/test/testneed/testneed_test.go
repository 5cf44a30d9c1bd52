package testneed_test

import (
	"runtime"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
)

// ended records how a test would have ended.
type ended struct {
	testing.TB
	how string
}

func (e *ended) Helper()      {}
func (e *ended) Fatal(...any) { e.how = "failed"; runtime.Goexit() }
func (e *ended) Skip(...any)  { e.how = "skipped"; runtime.Goexit() }

func TestAMissingPrerequisiteFailsWhereSkippingIsForbidden(t *testing.T) {
	for _, c := range []struct {
		met        bool
		noSkip, ci string
		want       string
	}{
		{true, "1", "true", "ran"},
		{false, "", "", "skipped"},
		{false, "1", "", "failed"},
		{false, "", "true", "failed"},
	} {
		t.Setenv(testneed.NoSkip, c.noSkip)
		t.Setenv("CI", c.ci)
		e := &ended{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			testneed.Require(e, c.met, "do something")
			e.how = "ran"
		}()
		if <-done; e.how != c.want {
			t.Errorf("%+v: it %s", c, e.how)
		}
	}
}
