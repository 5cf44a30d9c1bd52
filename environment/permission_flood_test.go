//go:build !race

package environment

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestFloodOfPermissionRequestsIsBounded(t *testing.T) {
	const text = `for (text = "x"; length(text) < 1000000;) text = text text; `
	for name, c := range map[string]struct {
		program          string
		requests, leftTo int // that are reported
	}{
		"few":                           {`for (i = 0; i < 64; i++) ask(i, "")`, 64, 64},
		"many":                          {`for (i = 0; i < 20000; i++) ask(i, "")`, 64, 64},
		"large ones":                    {text + `for (i = 0; i < 100; i++) ask(i, text)`, 30, 64},
		"one is repeated":               {`for (i = 0; i < 20000; i++) ask("again", "")`, 1, 1},
		"withdrawn ones make room":      {`for (i = 0; i < 1000; i++) { ask(i, ""); resolve(i) }`, 1000, 1000},
		"others' withdrawal makes none": {`for (i = 0; i < 1000; i++) { ask(i, ""); resolve("other") }`, 64, 64},
	} {
		t.Run(name, func(t *testing.T) {
			env := withQuery(t, askingMuch(c.program))
			counts := make(map[runnerscripts.EventType]int)
			var asked []runnerscripts.Event // while they are pending
			testmemory.AtMost(t, 2*query.MaxOpenBytes, func() {
				for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
					if err != nil {
						t.Fatal(err)
					}
					counts[ev.Type]++
					if ev.Type == runnerscripts.TypePermissionRequest {
						asked = append(asked, ev)
					}
				}
			})
			if n := len(asked); n < c.requests || n > c.leftTo {
				t.Errorf("%d requests of %v, want %d to %d", n, counts, c.requests, c.leftTo)
			}
			if strings.HasPrefix(name, "many") && counts[runnerscripts.TypeLog] != 20000-64 {
				t.Errorf("%v, want a log event for each that was rejected", counts)
			}
		})
	}
}
