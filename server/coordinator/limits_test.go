package coordinator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A byte that is no UTF-8 would become three.
func TestABodyIsUTF8(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start(t).fails("another one", "POST", "/runs", `{"type":"start_session","prompt":"`+"\xff"+`"}`, 400, "Invalid JSON")
	})
}

// A runner reads answers of up to 8 MiB: a run that does not fit would be handed out for ever.
func TestTheLargestRunFitsIntoThePollOfARunner(t *testing.T) {
	for _, text := range []string{"<", `\"`, `\u0001`, "\u2028"} {
		bubble(t, func(t *testing.T) {
			s := start(t, gated("block", 0)...)
			runner := s.register(coding)
			const around = `{"type":"start_session","agent_name":"gated","prompt":""}`
			prompt := strings.Repeat(text, (1<<20-len(around))/len(text))
			s.run(strings.Replace(around, `""`, `"`+prompt+`"`, 1))
			for _, name := range []string{"gate", "gated"} {
				status, answer := s.ask("GET", "/runner/runs?runner_id="+runner, "")
				if status != 200 || len(answer) > 8<<20 || !strings.Contains(answer, `"agent_name":"`+name+`"`) {
					t.Fatalf("%q: the poll for %s got %d with %d bytes", text, name, status, len(answer))
				}
				time.Sleep(10 * time.Second)
				s.finish(runner, `{"action":"continue"}`)
			}
			s.fails("a run that is larger", "POST", "/runs", strings.Replace(around, `""`, `"`+prompt+strings.Repeat(" ", 100)+`"`, 1), 413, "1048576")
		})
	}
}

func TestAHookCannotMakeARunTooLarge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("block", 0)...)
		runner := s.register(coding)
		r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
		s.finish(runner, `{"action":"continue","parameters":{"prompt":"`+strings.Repeat("x", 1<<20)+`"}}`)
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "bytes") {
			t.Errorf("the run is %+v", got)
		}
	})
}

func TestARunThatNoRunnerStartsFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		for range 10 {
			if got := s.claim(runner); got.ID != r.ID {
				t.Fatalf("claimed %+v", got)
			}
			time.Sleep(66 * time.Second)
		}
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "none has started it") {
			t.Errorf("the run is %+v", got)
		}
	})
}
