//go:build !race

package policy

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// No body takes more memory than itself, whatever it is made of. A changed call is a copy.
func TestFloodInACallTakesNoMoreMemoryThanItsBody(t *testing.T) { // not parallel: it measures memory
	const size = 8 << 20
	for name, build := range hostile(size) {
		t.Run(name, func(t *testing.T) {
			body, refusal := build()
			for _, api := range []runnerscripts.ModelAPI{anthropic, openai, gemini} {
				call := Call{API: api, Path: "/v1beta/models/m:generateContent", Body: body}
				testmemory.AtMost(t, size+8<<20, func() {
					if _, err := (Rules{Metered: true}).Apply(t.Context(), call); api == openai && (err == nil) != (refusal == "") || err != nil && len(err.Error()) > 1000 {
						t.Errorf("%s: %.2000v", api, err)
					} else if api == openai && err != nil && !strings.Contains(err.Error(), refusal) {
						t.Errorf("%s: %v, want %q", api, err, refusal)
					}
				})
			}
		})
	}
}
