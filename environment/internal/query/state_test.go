package query

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// do performs the word's call and returns its action in words.
func (s *state) do(word string) string {
	var a action
	switch word {
	case "accept":
		a = s.accept()
	case "interrupt":
		a = s.interrupt()
	case "leave":
		a = s.abandon(true)
	case "budget":
		a = s.abandon(false)
	case "start":
		s.event(runnerscripts.TypeQueryStarted)
	case "complete":
		s.event(runnerscripts.TypeQueryCompleted)
	case "fail":
		s.event(runnerscripts.TypeQueryFailed)
	case "say":
		s.event(runnerscripts.TypeAgentMessage)
	case "exit":
		a = s.exit(false, true)
	case "exit fresh":
		a = s.exit(true, true)
	case "exit abandoned":
		a = s.exit(false, false)
	default:
		panic(word)
	}
	return []string{"", "INTERRUPT", "GO ON", "AGAIN", "DIED"}[a]
}

func TestAQueryStopsOnceAndBeginsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		detach bool
		calls  string // each is followed by its action, if any
	}{
		"a query runs":                                   {false, "accept, start, say, complete"},
		"an interrupt while it runs":                     {false, "accept, start, interrupt INTERRUPT, complete"},
		"an interrupt before the agent has started":      {false, "accept, interrupt INTERRUPT, start, complete"},
		"an interrupt before any process has the prompt": {false, "interrupt, accept INTERRUPT, start, complete"},
		"a second interrupt":                             {false, "interrupt, interrupt, accept INTERRUPT, interrupt, start, interrupt, complete"},
		"an interrupt after the end":                     {false, "accept, start, complete, interrupt"},
		"the caller leaves":                              {false, "accept, start, leave INTERRUPT, say, leave, complete"},
		"the budget ends it":                             {false, "accept, start, budget INTERRUPT, fail"},
		"the caller leaves a detached query":             {true, "accept, start, leave GO ON"},
		"the budget ends a detached query":               {true, "accept, start, budget INTERRUPT, fail"},
		"a detached query is interrupted":                {true, "accept, start, interrupt INTERRUPT, complete"},
		"its old agent had exited":                       {false, "accept, exit AGAIN, accept, start, complete"},
		"its old agent had exited, after an interrupt":   {false, "accept, interrupt INTERRUPT, exit AGAIN, accept INTERRUPT, start, complete"},
		"its fresh agent exits at once":                  {false, "accept, exit fresh DIED"},
		"its agent exits while it runs":                  {false, "accept, start, exit DIED"},
		"its old agent had exited, and nobody waits":     {false, "accept, leave INTERRUPT, exit abandoned DIED"},
	} {
		t.Run(name, func(t *testing.T) {
			s := state{detach: c.detach}
			var got []string
			for call := range strings.SplitSeq(c.calls, ", ") {
				words := strings.FieldsFunc(call, func(r rune) bool { return r == ' ' })
				word := strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == strings.ToUpper(w) }), " ")
				if said := s.do(word); said != "" {
					word += " " + said
				}
				got = append(got, word)
			}
			if got := strings.Join(got, ", "); got != c.calls {
				t.Errorf("got  %s\nwant %s", got, c.calls)
			}
		})
	}
}

// In any order of calls each process gets at most one interrupt, only for an interrupted query whose prompt it has.
func TestInAnyOrderAProcessGetsOneInterrupt(t *testing.T) {
	calls := []string{"accept", "interrupt", "leave", "budget", "start", "complete", "say", "exit", "exit fresh"}
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := state{detach: seed%3 == 0}
		var done []string
		asked, has, begun, told := false, false, false, 0
		for range 20 {
			call := calls[random.IntN(len(calls))]
			said := s.do(call)
			done = append(done, call, said)
			asked = asked || call == "interrupt" || call == "budget" || !s.detach && call == "leave"
			switch call {
			case "accept":
				has, told = true, 0
			case "start":
				begun = begun || has
			}
			if said == "INTERRUPT" {
				told++
			}
			switch {
			case told > 1, said == "INTERRUPT" && (!asked || !has):
				t.Fatalf("seed %d: an interrupt too many or too early: %q", seed, done)
			case said == "AGAIN" && begun:
				t.Fatalf("seed %d: a prompt starts twice: %q", seed, done)
			case asked && has && told == 0 && s.phase != ended && said != "AGAIN" && s.phase != pending:
				t.Fatalf("seed %d: no interrupt: %q", seed, done)
			}
			if said == "AGAIN" {
				has = false
			}
		}
	}
}
