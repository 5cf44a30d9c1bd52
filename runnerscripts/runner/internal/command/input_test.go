package command

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// large is a prompt that is larger than a pipe's buffer: its write blocks until the executor reads
// it.
var large = strings.Repeat("x", 256<<10)

const (
	// begin reads the first byte of a prompt, and prints an event: the write of the prompt has
	// begun.
	begin = `dd bs=1 count=1 of=/dev/null 2>/dev/null
echo '{"type":"agent_message_chunk","payload":{"content":{"type":"text","text":"I begin"}}}'
`
	// flood prints more than the pipe of the output and the buffer of the runner hold.
	flood = `head -c 400000 /dev/zero | tr '\0' n | fold -w 1000; echo
`
	hang = `exec sleep 600
`
	complete = `echo '{"type":"turn_complete","result":"done"}'
`
)

// running is a conversation with a prompt whose write is blocked.
type running struct {
	agent.Conversation
	endPrompt context.CancelFunc // ends the context of Prompt
	endStart  context.CancelFunc // ends the context of Start
}

func TestPromptThatIsNotReadCanBeStopped(t *testing.T) {
	t.Parallel()
	scripts := map[string]struct{ lifecycle, first, script string }{
		"one_shot":     {"one_shot", "", begin + hang},
		"persistent":   {"persistent", "", begin + hang},
		"further turn": {"persistent", "first", "read -r line\n" + complete + begin + hang},
	}
	stops := map[string]struct {
		stop   func(running) error
		reason runnerscripts.StopReason // if there is no error
		fits   func(error) bool
	}{
		"interrupt": {
			stop:   func(r running) error { return r.Interrupt(t.Context()) },
			reason: runnerscripts.StopCancelled,
			fits:   func(err error) bool { return err == nil },
		},
		"close": {
			stop: func(r running) error { return r.Close() },
			fits: func(err error) bool { return agenttest.HasCode(err, runnerscripts.FailAgent) },
		},
		"end of the prompt's context": {
			stop: func(r running) error { r.endPrompt(); return nil },
			fits: func(err error) bool { return errors.Is(err, context.Canceled) },
		},
		"end of the conversation's context": {
			stop: func(r running) error { r.endStart(); return nil },
			fits: func(err error) bool { return agenttest.HasCode(err, runnerscripts.FailAgent) },
		},
	}
	for name, s := range scripts {
		for how, tt := range stops {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, s.lifecycle, s.script)
				var r running
				startCtx, endStart := context.WithCancel(t.Context())
				promptCtx, endPrompt := context.WithCancel(t.Context())
				r.Conversation, r.endStart, r.endPrompt = f.StartWith(startCtx, f.Out), endStart, endPrompt
				if s.first != "" {
					f.prompt(r, s.first)
				}
				result := promptLater(promptCtx, r, large)
				f.Out.Wait(t.Context(), t, begun)
				if err := tt.stop(r); err != nil {
					t.Fatal(err)
				}
				o := <-result
				if !tt.fits(o.err) || o.err == nil && o.done.StopReason != tt.reason {
					t.Errorf("ended with %q, %v", o.done.StopReason, o.err)
				}
				endPrompt()
				endStart()
			})
		}
	}
}

// begun reports whether e is the event that begin prints.
func begun(e runnerscripts.Event) bool {
	return e.Type == runnerscripts.TypeAgentMessage && strings.Contains(string(e.Payload), "I begin")
}

// outcome is how a query ended.
type outcome struct {
	done runnerscripts.QueryCompleted
	err  error
}

// promptLater runs a query on a goroutine of its own.
func promptLater(ctx context.Context, c agent.Conversation, text string) <-chan outcome {
	result := make(chan outcome, 1)
	go func() {
		done, err := c.Prompt(ctx, "q", text)
		result <- outcome{done, err}
	}()
	return result
}

func TestPromptThatIsNotReadTimesOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", hang)
	f.driver.silence = 200 * time.Millisecond
	if _, err := f.Start().Prompt(t.Context(), "q", large); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "200ms") {
		t.Errorf("error %v", err)
	}
}

func TestExecutorMayPrintALotBeforeItReadsItsPrompt(t *testing.T) {
	t.Parallel()
	for _, lifecycle := range []string{"one_shot", "persistent"} {
		t.Run(lifecycle, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, lifecycle, flood+`read -r line; printf '%s\n' "$line" >> got
`+complete)
			f.prompt(f.Start(), large)
			var got executor.Invocation
			if err := json.Unmarshal([]byte(f.file("got")), &got); err != nil || string(got.Parameters) != string(executor.Parameters(large)) {
				t.Errorf("it got parameters of %d bytes, %v", len(got.Parameters), err)
			}
			if !strings.HasSuffix(f.Said(), "done\n") {
				t.Errorf("it said %d bytes", len(f.Said()))
			}
		})
	}
}

// A turn ends only after its prompt is read: otherwise the next message would be in the middle of
// it. An executor that never reads the prompt can still be interrupted.
func TestTurnThatIsCompleteBeforeItsPromptIsRead(t *testing.T) {
	t.Parallel()
	t.Run("and is read then", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "persistent", "while "+complete+`read -r line; do printf '%s\n' "$line" >> got; done`)
		c := f.Start()
		f.prompt(c, large)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(f.file("got"), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], large) || lines[1] != `{"type":"shutdown"}` {
			t.Errorf("it got %d lines", len(lines))
		}
	})
	t.Run("and never is", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "persistent", complete+begin+hang)
		c := f.Start()
		result := promptLater(t.Context(), c, large)
		f.Out.Wait(t.Context(), t, begun)
		if err := c.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
		if o := <-result; o.err != nil || o.done.StopReason != runnerscripts.StopEndTurn {
			t.Errorf("ended with %q, %v", o.done.StopReason, o.err)
		}
	})
}

func TestExecutorThatReadsNothingAnyMoreIsClosed(t *testing.T) {
	t.Parallel()
	const page, pipe = 4096, 65536
	f := newFixture(t, "persistent", "read -r line\n"+complete+"dd bs=4096 count=1 of=/dev/null 2>/dev/null\n"+complete+hang)
	c := f.Start()
	f.prompt(c, "first")
	empty, err := json.Marshal(executor.Turn{Type: "turn", Parameters: executor.Parameters("")})
	if err != nil {
		t.Fatal(err)
	}
	// The executor reads one page of the line; the rest fills the pipe.
	f.prompt(c, strings.Repeat("x", page+pipe-len(empty)-len("\n")))
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestProgramThatDoesNotTakeItsPromptSaysHowTheQueryEnded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ lifecycle, script, said, failure string }{
		"one_shot fails":           {"one_shot", "echo half; echo why >&2; exit 4", "half\n\n", "exit status 4: why"},
		"one_shot ends":            {"one_shot", "echo whole", "whole\n\n", ""},
		"one_shot reads a part":    {"one_shot", begin + "exit 4", "I begin\n", "exit status 4"},
		"persistent fails":         {"persistent", "echo why >&2; exit 4", "", "exit status 4: why"},
		"persistent ends":          {"persistent", "exit 0", "", "turn_complete"},
		"persistent closes input":  {"persistent", "exec <&-\n" + complete + "exec sleep 600", "done\n", ""},
		"persistent ends complete": {"persistent", complete, "done\n", ""},
		"persistent fails after":   {"persistent", complete + "exit 4", "done\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, tt.lifecycle, tt.script)
			c := f.Start()
			done, err := c.Prompt(t.Context(), "q", large)
			switch {
			case tt.failure == "" && (err != nil || done.StopReason != runnerscripts.StopEndTurn):
				t.Errorf("ended with %q, %v", done.StopReason, err)
			case tt.failure != "" && (!agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), tt.failure)):
				t.Errorf("error %v, want %q", err, tt.failure)
			}
			if f.Said() != tt.said {
				t.Errorf("it said %q", f.Said())
			}
		})
	}
}
