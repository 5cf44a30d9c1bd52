package query

import (
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A call that does not say what it does has no key. An answer for the session holds once for it.
func TestAnAnswerToAnUnknownCallIsNotRemembered(t *testing.T) {
	req := runnerscripts.PermissionRequest{Options: []runnerscripts.PermissionOption{
		{OptionID: "once", Kind: runnerscripts.AllowOnce}, {OptionID: "always", Kind: runnerscripts.AllowAlways},
	}}
	for key, want := range map[string]string{"": runnerscripts.ScopeOnce, "k": runnerscripts.ScopeSession} {
		q := &Queries{}
		d, scope := q.rememberLocked(key, req, runnerscripts.AllowAlways, runnerscripts.PermissionDecision{OptionID: "always"}, "")
		_, known := q.remembered(key)
		if d.OptionID != "once" || scope != want || known != (key != "") {
			t.Errorf("key %q: option %s, scope %s, remembered %v", key, d.OptionID, scope, known)
		}
	}
}
