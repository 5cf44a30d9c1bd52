package primitivestest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

// clientRules returns the rules about several clients of a sandbox, in this program and in
// others.
func clientRules() []rule {
	rules := concat(attachRules(), otherEndRules(), programRules())
	for i := range rules {
		rules[i].possible = func(h Harness) bool { return h.Attach != nil }
	}
	return rules
}

// attach opens the sandbox once more.
func (s *sandbox) attach(t testingT) *sandbox {
	t.Helper()
	p, err := s.suite.h.Attach(t.Context(), s.suite.dir, s.ID())
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	t.Cleanup(func() { expect(t, "error of Close", p.Close(), nil) })
	box := *s
	box.EnvironmentPrimitive = p
	return &box
}

func attachRules() []rule {
	return []rule{
		{name: "Attach finds the same sandbox", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "from the first")
			other := s.attach(t)
			expect(t, "id", other.ID(), s.ID())
			expect(t, "paths", other.Paths(), s.Paths())
			expect(t, "capabilities", other.Capabilities(), s.Capabilities())
			expect(t, "content", other.read(t, "f"), "from the first")
			expect(t, "output", other.probed(t, "show", "f"), "from the first")
			other.write(t, "g", "from the second")
			expect(t, "content", s.read(t, "g"), "from the second")
		}},
		{name: "closing one handle leaves the other alone", own: true, check: func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "await", "go", "exit", "5")
			other := s.attach(t)
			expect(t, "output", other.probed(t, "out", "x"), "x")
			expect(t, "error of Close", other.Close(), nil)
			s.write(t, "go", "")
			expect(t, "code", s.wait(t, p).Code, 5)
		}},
		{name: "the sandbox lives on when its last handle is closed", own: true, check: func(t testingT, s *sandbox) {
			s.write(t, "f", "kept")
			expect(t, "error of Close", s.Close(), nil)
			other := s.attach(t)
			expect(t, "content", other.read(t, "f"), "kept")
			other.terminate(t)
		}},
		{name: "Attach to an unknown id is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			for _, id := range []string{"no-such-sandbox", "../..", ""} {
				p, err := s.suite.h.Attach(t.Context(), s.suite.dir, id)
				if err == nil {
					t.Errorf("Attach %q: no error, close gave %v", id, p.Close())
					continue
				}
				if !isAny(err, fs.ErrNotExist, fs.ErrInvalid) {
					t.Errorf("Attach %q: %v, want fs.ErrNotExist", id, err)
				}
			}
		}},
	}
}

// otherEndRules returns the rules about a sandbox that ends through another handle.
func otherEndRules() []rule {
	return []rule{
		{name: "Terminate through one handle is known to the other", own: true, check: func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "hang")
			other := s.attach(t)
			report := other.terminate(t)
			expect(t, "killed", len(report.Killed), 1)
			s.wait(t, p)
			eventually(t, s.suite.patience, func() error {
				_, err := s.Stat(t.Context(), ".")
				if !errors.Is(err, primitives.ErrTerminated) {
					return errors.Join(errors.New("Stat is not ErrTerminated"), err)
				}
				return nil
			})
			state, err := s.Poll(t.Context())
			expect(t, "error of Poll", err, nil)
			expect(t, "status", state.Status, primitives.StatusTerminated)
		}},
		{name: "a command that another handle terminates is cancelled, however it ends", own: true, check: func(t testingT, s *sandbox) {
			stubborn := s.command("ignore", "TERM", "out", "ready\n", "hang")
			stubborn.Grace = soon
			commands := map[string]primitives.Process{
				"plain":    s.start(t, t.Context(), s.command("out", "ready\n", "hang")),
				"polite":   s.start(t, t.Context(), s.command("trap", "TERM", "out", "ready\n", "hang")),
				"stubborn": s.start(t, t.Context(), stubborn),
			}
			if s.Capabilities().Durable {
				commands["durable"] = s.durable(t, "out", "ready\n", "hang")
			}
			for _, p := range commands {
				s.expectLines(t, p.Stdout(), "ready", 1)
			}
			s.attach(t).terminate(t)
			for name, p := range commands {
				expect(t, "reason of the "+name+" command", s.wait(t, p).Reason, primitives.ReasonCancelled)
			}
		}},
		{name: "Attach after Terminate is an error that says so", own: true, check: func(t testingT, s *sandbox) {
			s.terminate(t)
			p, err := s.suite.h.Attach(t.Context(), s.suite.dir, s.ID())
			if err == nil {
				t.Fatalf("Attach: no error, close gave %v", p.Close())
			}
			if !isAny(err, primitives.ErrTerminated, fs.ErrNotExist) {
				t.Errorf("Attach: %v, want ErrTerminated or fs.ErrNotExist", err)
			}
		}},
	}
}

// programRules returns the rules about other programs, and what they leave when they die.
func programRules() []rule {
	return []rule{
		{name: "another program works in the sandbox by its id", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "from here")
			cmd := s.command("write", "g", "from there", "out", "done\n")
			report, _ := s.suite.client(t, clientTask{ID: s.ID(), File: s.in("f"), Commands: []primitives.Command{cmd}})
			expect(t, "id", report.ID, s.ID())
			expect(t, "paths", report.Paths, s.Paths())
			expect(t, "content", report.Content, "from here")
			expect(t, "output", report.Outputs[0], "done")
			expect(t, "content", s.read(t, "g"), "from there")
		}},
		{name: "a program that leaves does not take the sandbox along", own: true, check: func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "await", "go", "exit", "5")
			s.suite.client(t, clientTask{ID: s.ID()})
			s.write(t, "go", "")
			expect(t, "code", s.wait(t, p).Code, 5)
		}},
		{name: "what a killed program left can be attached to and ended, or is gone", own: true, check: func(t testingT, s *sandbox) {
			words := []string{"mark", s.token, "out", "ready\n", "hang"}
			plain := primitives.Command{Args: append([]string{"./probe"}, words...)}
			tree := primitives.Command{Args: append(append([]string{"./probe", "spawn", "setsid"}, words...), "end", "hang")}
			report, kill := s.suite.client(t, clientTask{
				Probe: s.suite.probeFile(t, s.Capabilities()), Commands: []primitives.Command{plain, tree}, Hold: true,
			})
			kill()
			p, err := s.suite.h.Attach(t.Context(), s.suite.dir, report.ID)
			if err == nil {
				_, err = p.Terminate(t.Context())
				expect(t, "error of Terminate", err, nil)
				expect(t, "error of Close", p.Close(), nil)
			} else if !isAny(err, fs.ErrNotExist, primitives.ErrTerminated, primitives.ErrUnavailable) {
				t.Errorf("Attach: %v", err)
			}
			s.expectGone(t, s.token)
		}},
		{name: "a killed program takes its commands and listeners along, not those of others", own: true, check: checkKilledProgram},
		{name: "a durable command outlives the program that started it", own: true, check: func(t testingT, s *sandbox) {
			cmd := s.command("out", "first\n", "await", "go", "out", "second\n", "exit", "4")
			cmd.Durable = true
			if !s.Capabilities().Durable {
				s.expectNoStart(t, cmd, errors.ErrUnsupported)
				return
			}
			report, kill := s.suite.client(t, clientTask{ID: s.ID(), Commands: []primitives.Command{cmd}, Hold: true})
			expect(t, "output", report.Outputs[0], "first")
			kill()
			other := s.attach(t)
			p := other.reattach(t, report.IDs[0], primitives.Offset{})
			s.write(t, "go", "")
			expect(t, "output", s.readAll(t, p.Stdout()), "first\nsecond\n")
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Code: 4, Reason: primitives.ReasonExited})
		}},
	}
}

// checkKilledProgram does not attach, terminate or remove orphans after the kill.
func checkKilledProgram(t testingT, s *sandbox) {
	p := s.running(t, "out", "ready\n", "out", "ready\n", "await", "go", "exit", "5")
	theirs := "theirs-" + s.token
	report, kill := s.suite.client(t, clientTask{ID: s.ID(), Hold: true, Listen: s.Capabilities().Forward, Commands: []primitives.Command{
		s.command("mark", theirs, "out", "ready\n", "hang"),
		s.command("spawn", "double,quiet", "mark", theirs, "hang", "end", "out", "ready\n", "hang"),
	}})
	expect(t, "how many processes of the other program run", len(s.processes(t, theirs)), 3)
	dial := func() error {
		conn, err := primitives.Dial(t.Context(), s.EnvironmentPrimitive, "tcp", report.Address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if report.Address != "" {
		expect(t, "error of Dial to the other program's listener", dial(), nil)
	}
	kill()
	s.expectGone(t, theirs)
	if report.Address != "" {
		eventually(t, s.suite.patience, func() error {
			err := dial()
			if errors.Is(err, syscall.ECONNREFUSED) {
				return nil
			}
			if err == nil {
				return errors.New("the listener of the killed program takes connections")
			}
			return fmt.Errorf("a connection to the listener of the killed program, which should be refused: %w", err)
		})
	}
	s.write(t, "go", "")
	expect(t, "code", s.wait(t, p).Code, 5)
}

// reattach returns a durable command by its ID.
func (s *sandbox) reattach(t testingT, id string, from primitives.Offset) primitives.Process {
	t.Helper()
	p, err := primitives.Reattach(context.WithoutCancel(t.Context()), s.EnvironmentPrimitive, id, from)
	if err != nil {
		t.Fatalf("Reattach: %v", err)
	}
	t.Cleanup(func() { expect(t, "error of Close", p.Close(), nil) })
	return p
}
