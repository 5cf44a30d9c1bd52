package primitivestest

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// onTerminal runs a command on a terminal of 24 lines of 80 characters.
func onTerminal(cmd primitives.Command) primitives.Command {
	cmd.TTY = &primitives.TerminalSize{Rows: 24, Cols: 80}
	cmd.Grace = soon
	return cmd
}

// terminal runs the probe on a terminal to its end and returns its output.
func (s *sandbox) terminal(t testingT, words ...string) string {
	t.Helper()
	p := s.start(t, t.Context(), onTerminal(s.command(words...)))
	out := s.readAll(t, p.Stdout())
	expect(t, "stderr", s.readAll(t, p.Stderr()), "")
	s.wait(t, p)
	return out
}

func terminalRules() []rule { return concat(terminalStreamRules(), terminalProcessRules()) }

func terminalStreamRules() []rule {
	return []rule{
		{name: "without a terminal no stream is one", check: func(t testingT, s *sandbox) {
			expect(t, "terminals", s.probed(t, "tty"), "false false false \n")
		}},
		{name: "all three streams are the terminal", check: func(t testingT, s *sandbox) {
			expect(t, "terminals", s.terminal(t, "tty"), "true true true \r\n")
		}},
		{name: "the terminal has its size from the start", check: func(t testingT, s *sandbox) {
			cmd := onTerminal(s.command("size"))
			cmd.TTY = &primitives.TerminalSize{Rows: 31, Cols: 117}
			p := s.start(t, t.Context(), cmd)
			expect(t, "size", s.readAll(t, p.Stdout()), "size 31 117\r\n")
		}},
		{name: "of several resizes the last one counts", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command("sizes")))
			s.expectLines(t, p.Stdout(), "size 24 80\r", 1)
			for _, size := range []primitives.TerminalSize{{Rows: 40, Cols: 100}, {Rows: 50, Cols: 90}, {Rows: 100, Cols: 101}} {
				if err := p.Resize(t.Context(), size); err != nil {
					t.Fatalf("Resize: %v", err)
				}
			}
			s.expectLines(t, p.Stdout(), "size 100 101\r", 1)
		}},
		{name: "the terminal ends lines with CR LF", check: func(t testingT, s *sandbox) {
			expect(t, "output", s.terminal(t, "out", "a\nb\n"), "a\r\nb\r\n")
		}},
		{name: "standard error is on the terminal too", check: func(t testingT, s *sandbox) {
			expect(t, "output", s.terminal(t, "out", "a", "err", "b", "out", "c"), "abc")
		}},
		{name: "the terminal echoes its input", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command("line")))
			s.typeKeys(t, p, "hello\n")
			expect(t, "output", s.readAll(t, p.Stdout()), "hello\r\n\"hello\"\r\n")
		}},
	}
}

func terminalProcessRules() []rule { return concat(terminalKeyRules(), terminalExitRules()) }

func terminalKeyRules() []rule {
	return []rule{
		{name: "Control-C interrupts", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command("out", "ready\n", "hang")))
			s.expectLines(t, p.Stdout(), "ready\r", 1)
			s.typeKeys(t, p, "\x03")
			expect(t, "status", s.wait(t, p), killedBy(primitives.SIGINT, 130))
		}},
		{name: "Control-D is the end of input", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command("out", "ready\n", "line")))
			s.expectLines(t, p.Stdout(), "ready\r", 1)
			s.typeKeys(t, p, "\x04")
			s.expectLines(t, p.Stdout(), "\"<EOF>\"\r", 1)
		}},
		{name: "closing standard input is the end of input", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command("out", "ready\n", "line", "out", "after")))
			s.expectLines(t, p.Stdout(), "ready\r", 1)
			if err := p.Stdin().Close(); err != nil {
				t.Fatalf("Close: %v", err)
			}
			if out := s.readAll(t, p.Stdout()); !strings.Contains(out, "\"<EOF>\"\r\nafter") {
				t.Errorf("output is %q", out)
			}
		}},
		{name: "the end of input and output does not hang up", check: func(t testingT, s *sandbox) {
			for i := range 10 {
				s.leaveTerminal(t, fmt.Sprint("go", i))
			}
		}},
		{name: "TERM is set on a terminal", check: func(t testingT, s *sandbox) {
			if out := s.terminal(t, "env"); !strings.Contains(out, hexOf("TERM=")) {
				t.Errorf("no TERM in the environment")
			}
		}},
		{name: "TERM of the command is kept", check: func(t testingT, s *sandbox) {
			cmd := onTerminal(s.command("env"))
			cmd.Env = []string{"TERM=pt-terminal"}
			p := s.start(t, t.Context(), cmd)
			if out := s.readAll(t, p.Stdout()); !strings.Contains(out, hexOf("TERM=pt-terminal")+`"`) {
				t.Errorf("TERM is not the command's own")
			}
		}},
		{name: "the command leads a session that has the terminal", check: func(t testingT, s *sandbox) {
			expect(t, "session", s.terminal(t, "session"), "leader true terminal true\r\n")
		}},
	}
}

func terminalExitRules() []rule {
	return []rule{
		{name: "the last output before the exit is not lost", check: func(t testingT, s *sandbox) {
			for range 10 {
				out := s.terminal(t, "flood", "9000", "out", "tail")
				if len(out) != 9004 || !strings.HasSuffix(out, "tail") {
					t.Fatalf("%d bytes, want 9004 that end with the tail", len(out))
				}
			}
		}},
		{name: "Wait does not wait for a background that holds the terminal", check: func(t testingT, s *sandbox) {
			words := []string{"spawn", "setsid", "mark", s.token, "write", s.abs("child"), "", "hang", "end", "await", "child", "exit", "3"}
			p := s.start(t, t.Context(), onTerminal(s.command(words...)))
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited})
			s.probed(t, "kill", "KILL", s.token)
		}},
		{name: "output ends though a background holds the terminal", check: func(t testingT, s *sandbox) {
			words := []string{"spawn", "setsid", "mark", s.token, "write", s.abs("child"), "", "hang", "end", "await", "child", "out", "last"}
			p := s.start(t, t.Context(), onTerminal(s.command(words...)))
			expect(t, "output", s.readAll(t, p.Stdout()), "last")
			s.probed(t, "kill", "KILL", s.token)
		}},
		{name: "the input of a terminal can be closed when no more fits into it, and ends behind what fitted", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command("out", "ready\n", "await", "go", "count")))
			s.expectLines(t, p.Stdout(), "ready\r", 1)
			input := s.closeFull(t, p, strings.Repeat("x", 63)+"\n")
			s.write(t, "go", "")
			// The terminal also echoes the input.
			if out, want := s.readAll(t, p.Stdout()), fmt.Sprintf("%d %s", len(input), sum(input)); !strings.HasSuffix(out, want) {
				t.Errorf("the command has read %q, want %q", out[max(0, len(out)-len(want)):], want)
			}
		}},
		{name: "the exit status on a terminal is data", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command("exit", "70")))
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Code: 70, Reason: primitives.ReasonExited})
		}},
		{name: "a timeout ends a command on a terminal", check: func(t testingT, s *sandbox) {
			cmd := onTerminal(s.command("ignore", "HUP", "ignore", "TERM", "hang"))
			cmd.Timeout = soon
			p := s.start(t, t.Context(), cmd)
			expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonTimeout)
			s.expectGone(t, s.token)
		}},
		{name: "a cancelled context ends a command on a terminal", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := s.start(t, ctx, onTerminal(s.command("out", "ready\n", "hang")))
			s.expectLines(t, p.Stdout(), "ready\r", 1)
			cancel()
			expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonCancelled)
			s.expectGone(t, s.token)
		}},
		{name: "the size of a terminal that has exited cannot be changed in silence", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), onTerminal(s.command()))
			s.wait(t, p)
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := p.Resize(t.Context(), primitives.TerminalSize{Rows: 9, Cols: 9}); err == nil {
				t.Errorf("Resize: no error")
			}
		}},
	}
}

// typeKeys writes to a terminal.
func (s *sandbox) typeKeys(t testingT, p primitives.Process, keys string) {
	t.Helper()
	if _, err := io.WriteString(p.Stdin(), keys); err != nil {
		t.Fatalf("typing %q: %v", keys, err)
	}
}

// leaveTerminal starts a command that closes the terminal at the end of its input, as many
// commands do before they exit, and runs until a file exists.
func (s *sandbox) leaveTerminal(t testingT, file string) {
	t.Helper()
	p := s.start(t, t.Context(), onTerminal(s.command("cat", "closein", "closeout", "await", file)))
	s.typeKeys(t, p, "x\n")
	first := make([]byte, 1)
	s.within(t, "the first output", func() error {
		_, err := io.ReadFull(p.Stdout(), first)
		return err
	})
	if err := p.Stdin().Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	expect(t, "output", string(first)+s.readAll(t, p.Stdout()), "x\r\nx\r\n")
	s.write(t, file, "")
	expect(t, "status", s.wait(t, p), primitives.ExitStatus{Reason: primitives.ReasonExited})
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
