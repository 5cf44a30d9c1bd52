package permission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestARequestWaitsForItsTime(t *testing.T) {
	for name, c := range map[string]struct{ timeout, want time.Duration }{
		"the default": {0, time.Minute},
		"a time":      {time.Hour, time.Hour},
		"for ever":    {-1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := Policy{Timeout: c.timeout}
				waiting, cancel := p.Waiting(t.Context())
				began := time.Now()
				if c.want == 0 {
					time.AfterFunc(1000*time.Hour, cancel)
				}
				defer cancel()
				d, ok := p.Expire(waiting, runnerscripts.PermissionRequest{})
				if took := time.Since(began); ok != (c.want > 0) || ok && (took != c.want || d.Kind != runnerscripts.RejectOnce) {
					t.Errorf("it expired: %v, after %v, as %+v", ok, took, d)
				}
			})
		})
	}
}
