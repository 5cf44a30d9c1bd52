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
	case "give":
		a = s.give()
	case "interrupt":
		a = s.interrupt()
	case "leave":
		a = s.leave()
	case "cancel":
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
	case "exit cancelled":
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
		"a query runs":                                   {false, "give, start, say, complete"},
		"an interrupt while it runs":                     {false, "give, start, interrupt INTERRUPT, complete"},
		"an interrupt before the agent has begun":        {false, "give, interrupt INTERRUPT, start, complete"},
		"an interrupt before any process has the prompt": {false, "interrupt, give INTERRUPT, start, complete"},
		"a second interrupt":                             {false, "interrupt, interrupt, give INTERRUPT, interrupt, start, interrupt, complete"},
		"an interrupt after the end":                     {false, "give, start, complete, interrupt"},
		"the caller leaves":                              {false, "give, start, leave INTERRUPT, say, leave, complete"},
		"the context ends":                               {false, "give, start, cancel INTERRUPT, complete"},
		"the budget ends it":                             {false, "give, start, budget INTERRUPT, fail"},
		"the caller leaves a detached query":             {true, "give, start, leave GO ON"},
		"the context of a detached query ends":           {true, "give, start, cancel GO ON"},
		"the budget ends a detached query":               {true, "give, start, budget INTERRUPT, fail"},
		"a detached query is interrupted":                {true, "give, start, interrupt INTERRUPT, complete"},
		"its old agent had ended":                        {false, "give, exit AGAIN, give, start, complete"},
		"its old agent had ended, after an interrupt":    {false, "give, interrupt INTERRUPT, exit AGAIN, give INTERRUPT, start, complete"},
		"its fresh agent ends at once":                   {false, "give, exit fresh DIED"},
		"its agent ends while it runs":                   {false, "give, start, exit DIED"},
		"its old agent had ended, and nobody waits":      {false, "give, leave INTERRUPT, exit DIED"},
		"its old agent had ended, and the context, too":  {false, "give, cancel INTERRUPT, exit cancelled DIED"},
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

// In any order of calls each process is told at most once, only if somebody asked, and only while it has the prompt.
func TestInAnyOrderAnAgentIsToldOnceToStop(t *testing.T) {
	calls := []string{"give", "interrupt", "leave", "cancel", "budget", "start", "complete", "say", "exit", "exit fresh"}
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := state{detach: seed%3 == 0}
		var done []string
		asked, has, begun, told := false, false, false, 0
		for range 20 {
			call := calls[random.IntN(len(calls))]
			said := s.do(call)
			done = append(done, call, said)
			asked = asked || call == "interrupt" || call == "budget" || !s.detach && (call == "leave" || call == "cancel")
			switch call {
			case "give":
				has, told = true, 0
			case "start":
				begun = begun || has
			}
			if said == "INTERRUPT" {
				told++
			}
			switch {
			case told > 1, said == "INTERRUPT" && (!asked || !has):
				t.Fatalf("seed %d: told too often or too early: %q", seed, done)
			case said == "AGAIN" && begun:
				t.Fatalf("seed %d: a prompt begins twice: %q", seed, done)
			case asked && has && told == 0 && s.phase != over && said != "AGAIN" && s.phase != unsent:
				t.Fatalf("seed %d: the agent was not told: %q", seed, done)
			}
			if said == "AGAIN" {
				has = false
			}
		}
	}
}
