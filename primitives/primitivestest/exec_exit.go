package primitivestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/agentenv-dev/agentenv/primitives"
)

// exitRules returns the rules that the end of a command is data, never an error.
func exitRules() []rule {
	rules := []rule{
		{name: "a shell-like 127 of the program itself is no error", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("err", "sub: not found\n", "exit", "127"), primitives.RunOptions{})
			expect(t, "status", res.Status, primitives.ExitStatus{Code: 127, Reason: primitives.ReasonExited})
			expect(t, "stderr", string(res.Stderr), "sub: not found\n")
		}},
		{name: "only exit code 0 of a command that ended by itself is success", check: func(t testingT, s *sandbox) {
			expect(t, "0", s.run(t, s.command(), primitives.RunOptions{}).Status.Success(), true)
			expect(t, "1", s.run(t, s.command("exit", "1"), primitives.RunOptions{}).Status.Success(), false)
			expect(t, "killed", s.run(t, s.command("die", "KILL"), primitives.RunOptions{}).Status.Success(), false)
		}},
		{name: "output and exit status come together", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("out", "foo", "err", "bar", "exit", "70"), primitives.RunOptions{})
			expect(t, "status", res.Status, primitives.ExitStatus{Code: 70, Reason: primitives.ReasonExited})
			expect(t, "output", string(res.Stdout)+"|"+string(res.Stderr), "foo|bar")
		}},
		{name: "a signal that the caller sent is a signal", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("out", "ready\n", "hang"))
			s.expectLines(t, p.Stdout(), "ready", 1)
			if err := p.Signal(t.Context(), primitives.SIGTERM); err != nil {
				t.Fatalf("Signal: %v", err)
			}
			want := primitives.ExitStatus{Code: 143, Signal: primitives.SIGTERM, Reason: primitives.ReasonSignaled}
			expect(t, "status", s.wait(t, p), want)
		}},
		{name: "the exit status is the same at every Wait", check: checkManyWaits},
		{name: "a cancelled Wait gives up waiting and nothing else", check: checkCancelledWait},
	}
	for _, code := range []int{0, 1, 2, 70, 124, 126, 127, 137, 255} {
		rules = append(rules, rule{
			name: fmt.Sprintf("exit status %d is data", code),
			check: func(t testingT, s *sandbox) {
				res := s.run(t, s.command("exit", strconv.Itoa(code)), primitives.RunOptions{})
				expect(t, "status", res.Status, primitives.ExitStatus{Code: code, Reason: primitives.ReasonExited})
			},
		})
	}
	for _, d := range []struct {
		signal primitives.Signal
		code   int
	}{{primitives.SIGKILL, 137}, {primitives.SIGTERM, 143}, {"SEGV", 139}, {primitives.SIGHUP, 129}} {
		rules = append(rules, rule{
			name: fmt.Sprintf("death by SIG%s is code %d and the signal", d.signal, d.code),
			check: func(t testingT, s *sandbox) {
				res := s.run(t, s.command("die", string(d.signal)), primitives.RunOptions{})
				expect(t, "status", res.Status, killedBy(d.signal, d.code))
			},
		})
	}
	return rules
}

// killedBy returns the status of a command that a signal ended.
func killedBy(sig primitives.Signal, code int) primitives.ExitStatus {
	return primitives.ExitStatus{Code: code, Signal: sig, Reason: primitives.ReasonSignaled}
}

func checkManyWaits(t testingT, s *sandbox) {
	p := s.start(t, t.Context(), s.command("exit", "7"))
	type answer struct {
		status primitives.ExitStatus
		err    error
	}
	answers := make(chan answer)
	for range 8 {
		go func() {
			status, err := p.Wait(t.Context())
			answers <- answer{status, err}
		}()
	}
	want := answer{status: primitives.ExitStatus{Code: 7, Reason: primitives.ReasonExited}}
	for range 8 {
		expect(t, "Wait at the same time", <-answers, want)
	}
	expect(t, "Wait again", s.wait(t, p), want.status)
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	expect(t, "Wait after Close", s.wait(t, p), want.status)
}

func checkCancelledWait(t testingT, s *sandbox) {
	p := s.start(t, t.Context(), withInput(s.command("out", "ready\n", "line", "exit", "3")))
	s.expectLines(t, p.Stdout(), "ready", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Wait(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with a cancelled context: %v, want context.Canceled", err)
	}
	if _, err := p.Stdin().Write([]byte("still there\n")); err != nil {
		t.Fatalf("write after the cancelled Wait: %v", err)
	}
	s.expectLines(t, p.Stdout(), `"still there"`, 1)
	expect(t, "status", s.wait(t, p), primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited})
}

// withInput connects standard input.
func withInput(cmd primitives.Command) primitives.Command {
	cmd.Stdin = true
	return cmd
}

// processRules returns the rules about a started process.
func processRules() []rule { return concat(signalRules(), processCloseRules()) }

func signalRules() []rule {
	return []rule{
		{name: "every process has an id of its own", check: func(t testingT, s *sandbox) {
			seen := map[string]bool{"": true}
			for range 3 {
				id := s.start(t, t.Context(), s.command()).ID()
				if seen[id] {
					t.Errorf("id %q is empty or used twice", id)
				}
				seen[id] = true
			}
		}},
		{name: "a signal reaches the whole process group", check: func(t testingT, s *sandbox) {
			words := []string{"spawn", "plain", "mark", s.token, "out", "ready\n", "hang", "end", "out", "ready\n", "hang"}
			p := s.start(t, t.Context(), s.command(words...))
			s.expectLines(t, p.Stdout(), "ready", 2)
			if err := p.Signal(t.Context(), primitives.SIGINT); err != nil {
				t.Fatalf("Signal: %v", err)
			}
			expect(t, "signal", s.wait(t, p).Signal, primitives.SIGINT)
			s.expectGone(t, s.token)
		}},
		{name: "a signal can be caught", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("trap", "USR1", "out", "ready\n", "hang"))
			s.expectLines(t, p.Stdout(), "ready", 1)
			if err := p.Signal(t.Context(), primitives.SIGUSR1); err != nil {
				t.Fatalf("Signal: %v", err)
			}
			expect(t, "output", s.readAll(t, p.Stdout()), "got USR1\n")
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Reason: primitives.ReasonExited})
		}},
		{name: "a signal after the exit is os.ErrProcessDone", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command())
			s.wait(t, p)
			for range 2 {
				if err := p.Signal(t.Context(), primitives.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
					t.Errorf("Signal after the exit: %v, want os.ErrProcessDone", err)
				}
			}
		}},
		{name: "a signal after the exit spares what was left in the background", check: checkSpared},
		{name: "a signal that does not exist is refused", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("out", "ready\n", "hang"))
			s.expectLines(t, p.Stdout(), "ready", 1)
			if err := p.Signal(t.Context(), "NOSUCH"); err == nil || errors.Is(err, os.ErrProcessDone) {
				t.Errorf("Signal NOSUCH: %v, want an error that says so", err)
			}
			expect(t, "processes alive", len(s.processes(t, s.token)), 1)
		}},
	}
}

func processCloseRules() []rule {
	return []rule{
		{name: "resizing without a terminal is unsupported", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("hang"))
			err := p.Resize(t.Context(), primitives.TerminalSize{Rows: 10, Cols: 10})
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Resize: %v, want errors.ErrUnsupported", err)
			}
		}},
		{name: "closing a process twice does nothing more", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("hang"))
			for range 2 {
				if err := p.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
		}},
		{name: "closing a finished process spares what it left in the background", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("spawn", "quiet", "mark", s.token, "write", "ready", "", "hang", "end", "await", "ready"))
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Reason: primitives.ReasonExited})
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			expect(t, "processes alive", len(s.processes(t, s.token)), 1)
			s.probed(t, "kill", "KILL", s.token)
		}},
		{name: "Run refuses a terminal and a durable command", check: func(t testingT, s *sandbox) {
			tty := s.command()
			tty.TTY = &primitives.TerminalSize{Rows: 24, Cols: 80}
			_, err := primitives.Run(t.Context(), s.EnvironmentPrimitive, tty, primitives.RunOptions{})
			expectError(t, "terminal", err, errInvalid)
			durable := s.command()
			durable.Durable = true
			_, err = primitives.Run(t.Context(), s.EnvironmentPrimitive, durable, primitives.RunOptions{})
			expectError(t, "durable", err, errInvalid)
		}},
		{name: "Run implies standard input by its options", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("cat"), primitives.RunOptions{Stdin: bytes.NewReader([]byte("in"))})
			expect(t, "output", string(res.Stdout), "in")
		}},
	}
}

func checkSpared(t testingT, s *sandbox) {
	p := s.start(t, t.Context(), s.command("spawn", "quiet", "mark", s.token, "write", "ready", "", "hang", "end", "await", "ready"))
	s.wait(t, p)
	if err := p.Signal(t.Context(), primitives.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after the exit: %v, want os.ErrProcessDone", err)
	}
	expect(t, "processes alive", len(s.processes(t, s.token)), 1)
	s.probed(t, "kill", "KILL", s.token)
}
