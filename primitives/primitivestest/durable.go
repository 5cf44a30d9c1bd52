package primitivestest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// durableRule returns a rule that expects errors.ErrUnsupported if the sandbox has no durable
// commands.
func durableRule(name string, check func(t testingT, s *sandbox)) rule {
	return rule{name: name, check: func(t testingT, s *sandbox) {
		if !s.Capabilities().Durable {
			cmd := s.command()
			cmd.Durable = true
			s.expectNoStart(t, cmd, errors.ErrUnsupported)
			_, err := primitives.Reattach(t.Context(), s.EnvironmentPrimitive, "x", primitives.Offset{})
			expectError(t, "Reattach", err, errors.ErrUnsupported)
			return
		}
		check(t, s)
	}}
}

// durable starts a durable command.
func (s *sandbox) durable(t testingT, words ...string) primitives.Process {
	t.Helper()
	cmd := s.command(words...)
	cmd.Durable, cmd.Grace = true, soon
	return s.start(t, t.Context(), cmd)
}

// durableRules returns the rules about commands that outlive their client.
func durableRules() []rule {
	return append(concat(durableReadRules(), durableLifeRules(), durableStartRules()), durableTerminateRule())
}

func durableReadRules() []rule {
	zero := primitives.Offset{}
	return []rule{
		durableRule("a durable command has streams and a status like any other", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "foo", "err", "bar", "exit", "7")
			expect(t, "stdout", s.readAll(t, p.Stdout()), "foo")
			expect(t, "stderr", s.readAll(t, p.Stderr()), "bar")
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Code: 7, Reason: primitives.ReasonExited})
		}),
		durableRule("a finished durable command can be read again from the start", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "foo", "err", "bar", "exit", "7")
			s.wait(t, p)
			expect(t, "error of Close", p.Close(), nil)
			for range 2 {
				again := s.reattach(t, p.ID(), zero)
				expect(t, "id", again.ID(), p.ID())
				expect(t, "stdout", s.readAll(t, again.Stdout()), "foo")
				expect(t, "stderr", s.readAll(t, again.Stderr()), "bar")
				expect(t, "status", s.wait(t, again), primitives.ExitStatus{Code: 7, Reason: primitives.ReasonExited})
			}
		}),
		durableRule("a durable command can be read from any offset of each stream", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "0123456789", "err", "abcdef")
			s.wait(t, p)
			for _, c := range []struct {
				from        primitives.Offset
				stdout, err string
			}{
				{primitives.Offset{Stdout: 4}, "456789", "abcdef"},
				{primitives.Offset{Stdout: 10, Stderr: 5}, "", "f"},
				{primitives.Offset{Stderr: 6}, "0123456789", ""},
			} {
				again := s.reattach(t, p.ID(), c.from)
				expect(t, "stdout", s.readAll(t, again.Stdout()), c.stdout)
				expect(t, "stderr", s.readAll(t, again.Stderr()), c.err)
			}
		}),
		durableRule("the output so far of a durable command that goes on can be read to its end", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "0123456789\n", "err", "abcdef\n", "await", "go", "out", "more\n")
			s.expectLines(t, p.Stdout(), "0123456789", 1)
			s.expectLines(t, p.Stderr(), "abcdef", 1)
			again := s.reattach(t, p.ID(), primitives.Offset{Stdout: 4, Stderr: 5, NoFollow: true})
			expect(t, "stdout", s.readAll(t, again.Stdout()), "456789\n")
			expect(t, "stderr", s.readAll(t, again.Stderr()), "f\n")
			s.write(t, "go", "")
			expect(t, "status", s.wait(t, again).Success(), true)
		}),
		durableRule("an offset beyond the output is fs.ErrInvalid", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "0123456789")
			s.wait(t, p)
			for _, from := range []primitives.Offset{{Stdout: 11}, {Stderr: 1}, {Stdout: -1}} {
				_, err := primitives.Reattach(t.Context(), s.EnvironmentPrimitive, p.ID(), from)
				expectError(t, "Reattach", err, fs.ErrInvalid)
			}
		}),
		durableRule("a durable command goes on when it has printed more than is kept", func(t testingT, s *sandbox) {
			const most = primitives.MaxDurableOutput
			p := s.durable(t, "flood", strconv.Itoa(most+1<<20), "err", "done", "exit", "3")
			expect(t, "stderr", s.readAll(t, p.Stderr()), "done")
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited})
			for _, from := range []primitives.Offset{{Stdout: most - 5}, {Stdout: most - 5, NoFollow: true}, {Stdout: most}} {
				again := s.reattach(t, p.ID(), from)
				var got []byte
				s.within(t, "the output to end", func() error {
					var err error
					got, err = io.ReadAll(again.Stdout())
					expectError(t, "Read", err, primitives.ErrLimit)
					return nil
				})
				expect(t, "bytes that are kept", int64(len(got)), most-from.Stdout)
			}
			_, err := primitives.Reattach(t.Context(), s.EnvironmentPrimitive, p.ID(), primitives.Offset{Stdout: most + 1})
			expectError(t, "Reattach", err, fs.ErrInvalid)
		}),
		durableRule("an unknown durable command is fs.ErrNotExist", func(t testingT, s *sandbox) {
			for _, id := range []string{"no-such-command", "../../x", "a/b", ""} {
				_, err := primitives.Reattach(t.Context(), s.EnvironmentPrimitive, id, zero)
				expectError(t, "Reattach "+id, err, fs.ErrNotExist)
			}
		}),
	}
}

func durableLifeRules() []rule {
	zero := primitives.Offset{}
	return []rule{
		durableRule("closing a durable command only lets go of it", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "first\n", "await", "go", "out", "second\n", "exit", "4")
			s.expectLines(t, p.Stdout(), "first", 1)
			expect(t, "error of Close", p.Close(), nil)
			again := s.reattach(t, p.ID(), zero)
			s.write(t, "go", "")
			expect(t, "stdout", s.readAll(t, again.Stdout()), "first\nsecond\n")
			expect(t, "code", s.wait(t, again).Code, 4)
		}),
		durableRule("cancelling the context of a durable command only lets go of it", func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := s.command("out", "first\n", "await", "go", "exit", "4")
			cmd.Durable = true
			p := s.start(t, ctx, cmd)
			s.expectLines(t, p.Stdout(), "first", 1)
			cancel()
			again := s.reattach(t, p.ID(), zero)
			s.expectLines(t, again.Stdout(), "first", 1)
			s.write(t, "go", "")
			expect(t, "status", s.wait(t, again), primitives.ExitStatus{Code: 4, Reason: primitives.ReasonExited})
		}),
		durableRule("a durable command that prints is followed", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "one\n", "await", "a", "out", "two\n", "await", "b", "out", "three\n")
			again := s.reattach(t, p.ID(), zero)
			for i, line := range []string{"one", "two", "three"} {
				s.expectLines(t, p.Stdout(), line, 1)
				s.expectLines(t, again.Stdout(), line, 1)
				s.write(t, string(rune('a'+i)), "")
			}
			expect(t, "end", s.readAll(t, again.Stdout()), "")
		}),
		durableRule("the signal that ended a durable command is known later", func(t testingT, s *sandbox) {
			p := s.durable(t, "out", "ready\n", "hang")
			s.expectLines(t, p.Stdout(), "ready", 1)
			again := s.reattach(t, p.ID(), zero)
			expect(t, "error of Signal", again.Signal(t.Context(), primitives.SIGTERM), nil)
			want := primitives.ExitStatus{Code: 143, Signal: primitives.SIGTERM, Reason: primitives.ReasonSignaled}
			expect(t, "status", s.wait(t, again), want)
			expect(t, "status", s.wait(t, s.reattach(t, p.ID(), zero)), want)
		}),
		durableRule("a timeout ends a durable command", func(t testingT, s *sandbox) {
			cmd := s.command("out", "kept", "hang")
			cmd.Durable, cmd.Grace = true, soon
			s.patiently(t, "the command prints", func(short time.Duration) bool {
				cmd.Timeout = short
				p := s.start(t, t.Context(), cmd)
				expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonTimeout)
				s.expectGone(t, s.token)
				return s.readAll(t, p.Stdout()) == "kept"
			})
		}),
	}
}

func durableStartRules() []rule {
	return []rule{
		durableRule("ten mebibytes of a durable command are kept whole", func(t testingT, s *sandbox) {
			p := s.durable(t, "flood", "10485760")
			expect(t, "stdout", s.readAll(t, p.Stdout()) == alphabet(10<<20), true)
			again := s.reattach(t, p.ID(), primitives.Offset{Stdout: 10<<20 - 7})
			expect(t, "end", s.readAll(t, again.Stdout()), alphabet(10 << 20)[10<<20-7:])
		}),
		durableRule("a durable command that cannot start is an error of Exec", func(t testingT, s *sandbox) {
			cmd := primitives.Command{Args: []string{s.abs("nothing")}, Durable: true}
			s.expectNoStart(t, cmd, primitives.ErrCommandNotFound, fs.ErrNotExist)
			cmd = s.command()
			cmd.Durable, cmd.Dir = true, s.in("missing")
			s.expectNoStart(t, cmd, primitives.ErrWorkingDir, fs.ErrNotExist)
		}),
		durableRule("a durable command without a reader does not block", func(t testingT, s *sandbox) {
			p := s.durable(t, "flood", "4194304", "write", "done", "")
			s.expectFile(t, "done")
			expect(t, "status", s.wait(t, p).Success(), true)
		}),
	}
}

func durableTerminateRule() rule {
	r := durableRule("Terminate ends durable commands", func(t testingT, s *sandbox) {
		p := s.durable(t, "out", "ready\n", "hang")
		s.expectLines(t, p.Stdout(), "ready", 1)
		expect(t, "error of Close", p.Close(), nil)
		names := ""
		for _, k := range s.terminate(t).Killed {
			names += k.Command + " "
		}
		if !strings.Contains(names, "probe") {
			t.Errorf("killed %q, want the probe among them", names)
		}
		s.suite.expectNoProcesses(t, s.token)
	})
	r.own = true
	return r
}
