package primitivestest

import (
	"context"
	"errors"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// soon is a grace period that ends while the case waits. It is also the first timeout to try if
// a command must make progress before the timeout expires.
const soon = 200 * time.Millisecond

// endingRules returns the rules about timeout, cancellation and Close of one process.
func endingRules() []rule {
	return concat(timeoutRules(), cancelRules())
}

// limited gives a command a timeout and a short grace period.
func limited(cmd primitives.Command) primitives.Command {
	cmd.Timeout, cmd.Grace = soon, soon
	return cmd
}

// timedOut runs a command that writes the file ready and hangs, with a timeout that expires
// after that.
func (s *sandbox) timedOut(t testingT, cmd primitives.Command) (res primitives.RunResult) {
	t.Helper()
	s.patiently(t, "the command writes its file", func(short time.Duration) bool {
		cmd.Timeout = short
		res = s.run(t, cmd, primitives.RunOptions{})
		_, err := s.Stat(t.Context(), s.in("ready"))
		return err == nil
	})
	return res
}

func timeoutRules() []rule {
	return []rule{
		{name: "a timeout is a reason, not an error", check: func(t testingT, s *sandbox) {
			cmd := limited(s.command("hang"))
			cmd.Grace = time.Hour
			res := s.run(t, cmd, primitives.RunOptions{})
			want := primitives.ExitStatus{Code: 143, Signal: primitives.SIGTERM, Reason: primitives.ReasonTimeout}
			expect(t, "status", res.Status, want)
		}},
		{name: "a timeout keeps what was printed before", check: func(t testingT, s *sandbox) {
			res := s.timedOut(t, limited(s.command("out", "before", "err", "also", "write", "ready", "", "hang")))
			expect(t, "output", string(res.Stdout)+"|"+string(res.Stderr), "before|also")
			expect(t, "reason", res.Status.Reason, primitives.ReasonTimeout)
		}},
		{name: "a command that ends in time has not timed out", check: func(t testingT, s *sandbox) {
			cmd := s.command("exit", "9")
			cmd.Timeout = time.Hour
			expect(t, "status", s.run(t, cmd, primitives.RunOptions{}).Status, primitives.ExitStatus{Code: 9, Reason: primitives.ReasonExited})
		}},
		{name: "a death by SIGTERM before the timeout is no timeout", check: func(t testingT, s *sandbox) {
			cmd := s.command("die", "TERM")
			cmd.Timeout = time.Hour
			expect(t, "status", s.run(t, cmd, primitives.RunOptions{}).Status, killedBy(primitives.SIGTERM, 143))
		}},
		{name: "a command that exits with 0 within the grace has timed out", check: func(t testingT, s *sandbox) {
			cmd := s.command("trap", "TERM", "write", "ready", "", "hang")
			cmd.Grace = time.Hour
			res := s.timedOut(t, cmd)
			expect(t, "status", res.Status, primitives.ExitStatus{Reason: primitives.ReasonTimeout})
			expect(t, "output", string(res.Stdout), "got TERM\n")
		}},
		{name: "a command that ignores SIGTERM is killed after the grace", check: func(t testingT, s *sandbox) {
			res := s.timedOut(t, limited(s.command("ignore", "TERM", "write", "ready", "", "hang")))
			want := primitives.ExitStatus{Code: 137, Signal: primitives.SIGKILL, Reason: primitives.ReasonTimeout}
			expect(t, "status", res.Status, want)
		}},
		{name: "a negative grace kills at once", check: func(t testingT, s *sandbox) {
			cmd := s.command("trap", "TERM", "write", "ready", "", "hang")
			cmd.Grace = -1
			res := s.timedOut(t, cmd)
			want := primitives.ExitStatus{Code: 137, Signal: primitives.SIGKILL, Reason: primitives.ReasonTimeout}
			expect(t, "status", res.Status, want)
			expect(t, "output", string(res.Stdout), "")
		}},
		{name: "the streams of a command that timed out end", check: func(t testingT, s *sandbox) {
			cmd := limited(s.command("spawn", "plain", "mark", s.token, "hang", "end", "out", "x", "hang"))
			s.patiently(t, "the command prints", func(short time.Duration) bool {
				cmd.Timeout = short
				p := s.start(t, t.Context(), cmd)
				out := s.readAll(t, p.Stdout())
				expect(t, "stderr", s.readAll(t, p.Stderr()), "")
				expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonTimeout)
				return out == "x"
			})
		}},
		{name: "a timeout ends a command whose output is not read", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), limited(s.command("flood", "100000000")))
			expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonTimeout)
		}},
	}
}

// cancelledRun runs a command that writes the file ready and hangs, with a context whose
// deadline expires after that.
func (s *sandbox) cancelledRun(t testingT, cmd primitives.Command) (res primitives.RunResult) {
	t.Helper()
	s.patiently(t, "the command writes its file", func(short time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), short)
		defer cancel()
		var err error
		res, err = primitives.Run(ctx, s.EnvironmentPrimitive, cmd, primitives.RunOptions{})
		if errors.Is(err, context.DeadlineExceeded) {
			return false // not even started
		}
		if err != nil {
			t.Fatalf("Run: %v", err)
		}
		expect(t, "reason", res.Status.Reason, primitives.ReasonCancelled)
		_, err = s.Stat(t.Context(), s.in("ready"))
		return err == nil
	})
	return res
}

func cancelRules() []rule { return concat(cancelledRules(), afterCancelRules()) }

func cancelledRules() []rule {
	// ready starts a command that prints ready and waits for it.
	ready := func(t testingT, s *sandbox, ctx context.Context, words ...string) primitives.Process {
		t.Helper()
		cmd := s.command(words...)
		cmd.Grace = soon
		p := s.start(t, ctx, cmd)
		s.expectLines(t, p.Stdout(), "ready", 1)
		return p
	}
	return []rule{
		{name: "a cancelled context ends the command politely", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := s.command("trap", "TERM", "out", "ready\n", "hang")
			cmd.Grace = time.Hour
			p := s.start(t, ctx, cmd)
			s.expectLines(t, p.Stdout(), "ready", 1)
			cancel()
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Reason: primitives.ReasonCancelled})
			expect(t, "output", s.readAll(t, p.Stdout()), "got TERM\n")
		}},
		{name: "a cancelled context kills what ignores SIGTERM", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := ready(t, s, ctx, "ignore", "TERM", "out", "ready\n", "hang")
			cancel()
			want := primitives.ExitStatus{Code: 137, Signal: primitives.SIGKILL, Reason: primitives.ReasonCancelled}
			expect(t, "status", s.wait(t, p), want)
		}},
		{name: "a deadline of the context is a cancellation", check: func(t testingT, s *sandbox) {
			cmd := s.command("write", "ready", "", "hang")
			cmd.Grace = soon
			s.cancelledRun(t, cmd)
		}},
		{name: "a cancelled Run keeps what was printed before", check: func(t testingT, s *sandbox) {
			res := s.cancelledRun(t, s.command("out", "before", "write", "ready", "", "hang"))
			expect(t, "output", string(res.Stdout), "before")
		}},
	}
}

func afterCancelRules() []rule {
	// ready starts a command that prints ready and waits for it.
	ready := func(t testingT, s *sandbox, ctx context.Context, words ...string) primitives.Process {
		t.Helper()
		cmd := s.command(words...)
		cmd.Grace = soon
		p := s.start(t, ctx, cmd)
		s.expectLines(t, p.Stdout(), "ready", 1)
		return p
	}
	return []rule{
		{name: "a context that is cancelled after the exit changes nothing", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := s.start(t, ctx, s.command("out", "kept", "exit", "6"))
			want := primitives.ExitStatus{Code: 6, Reason: primitives.ReasonExited}
			expect(t, "status", s.wait(t, p), want)
			cancel()
			expect(t, "status after cancel", s.wait(t, p), want)
			expect(t, "output", s.readAll(t, p.Stdout()), "kept")
		}},
		{name: "cancelling one command leaves the others alone", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			other := ready(t, s, t.Context(), "out", "ready\n", "await", "go", "exit", "8")
			p := ready(t, s, ctx, "out", "ready\n", "hang")
			cancel()
			expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonCancelled)
			s.write(t, "go", "")
			expect(t, "status of the other", s.wait(t, other), primitives.ExitStatus{Code: 8, Reason: primitives.ReasonExited})
		}},
		{name: "closing a running process is a cancellation", check: func(t testingT, s *sandbox) {
			p := ready(t, s, t.Context(), "out", "ready\n", "hang")
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonCancelled)
			s.expectGone(t, s.token)
		}},
		{name: "SIGTERM sent by the caller is no cancellation", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := ready(t, s, ctx, "out", "ready\n", "hang")
			if err := p.Signal(t.Context(), primitives.SIGTERM); err != nil {
				t.Fatalf("Signal: %v", err)
			}
			expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonSignaled)
		}},
	}
}
