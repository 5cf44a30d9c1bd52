package primitivestest

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// pauseRule returns a rule that expects errors.ErrUnsupported if the sandbox cannot be paused.
func pauseRule(name string, check func(t testingT, s *sandbox)) rule {
	return rule{name: name, own: true, check: func(t testingT, s *sandbox) {
		if s.Capabilities().Pause {
			check(t, s)
			return
		}
		expectError(t, "Pause", primitives.Pause(t.Context(), s.EnvironmentPrimitive), errors.ErrUnsupported)
		expectError(t, "Resume", primitives.Resume(t.Context(), s.EnvironmentPrimitive), errors.ErrUnsupported)
	}}
}

func (s *sandbox) pause(t testingT) {
	t.Helper()
	if err := primitives.Pause(t.Context(), s.EnvironmentPrimitive); err != nil {
		t.Fatalf("Pause: %v", err)
	}
}

func (s *sandbox) resume(t testingT) {
	t.Helper()
	if err := primitives.Resume(t.Context(), s.EnvironmentPrimitive); err != nil {
		t.Fatalf("Resume: %v", err)
	}
}

func (s *sandbox) expectStatus(t testingT, want primitives.Status) {
	t.Helper()
	state, err := s.Poll(t.Context())
	expect(t, "error of Poll", err, nil)
	expect(t, "status", state.Status, want)
}

// pauseRules returns the rules about paused sandboxes.
func pauseRules() []rule {
	return []rule{
		pauseRule("a paused process makes no progress, and goes on after Resume", func(t testingT, s *sandbox) {
			cmd := s.command("out", "ready\n", "line", "line", "exit", "3")
			cmd.Stdin = true
			p := s.start(t, t.Context(), cmd)
			s.expectLines(t, p.Stdout(), "ready", 1)
			s.pause(t)
			s.suite.strays.Go(func() { _, _ = io.WriteString(p.Stdin(), "one\ntwo\n") })
			answer := make(chan error, 1)
			s.suite.strays.Go(func() {
				b, err := io.ReadAll(p.Stdout())
				if got := string(b); err == nil && got != "\"one\"\n\"two\"\n" {
					err = fmt.Errorf("it printed %q", got)
				}
				answer <- err
			})
			timer := time.NewTimer(s.suite.calm)
			defer timer.Stop()
			select {
			case err := <-answer:
				t.Errorf("the paused process answered: %v", err)
				return
			case <-timer.C:
			}
			s.resume(t)
			s.within(t, "the answers after Resume", func() error { return <-answer })
			expect(t, "code", s.wait(t, p).Code, 3)
		}),
		pauseRule("a paused sandbox says so and takes no calls until Resume", func(t testingT, s *sandbox) {
			s.write(t, "f", "kept")
			for range 2 { // pausing again is no error
				s.pause(t)
				s.expectStatus(t, primitives.StatusPaused)
			}
			for _, op := range operations() {
				s.within(t, op.name+" to be refused", func() error {
					s.expectRefused(t, op, primitives.ErrUnavailable)
					return nil
				})
			}
			for range 2 {
				s.resume(t)
				s.expectStatus(t, primitives.StatusRunning)
			}
			expect(t, "content", s.probed(t, "show", "f"), "kept")
		}),
		pauseRule("a paused sandbox can be terminated", func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "hang")
			s.pause(t)
			expect(t, "killed", len(s.terminate(t).Killed), 1)
			s.wait(t, p)
			s.expectStatus(t, primitives.StatusTerminated)
		}),
		pauseRule("a paused sandbox can be closed, and attaching resumes it", func(t testingT, s *sandbox) {
			s.write(t, "f", "kept")
			s.pause(t)
			s.within(t, "Close", s.Close)
			if s.suite.h.Attach == nil {
				return
			}
			other := s.attach(t)
			other.expectStatus(t, primitives.StatusRunning)
			expect(t, "content", other.probed(t, "show", "f"), "kept")
		}),
		pauseRule("a paused sandbox can be copied, and the copies run", func(t testingT, s *sandbox) {
			if !s.Capabilities().Fork {
				return
			}
			s.write(t, "f", "kept")
			s.pause(t)
			c := s.copies(t, 1)[0]
			s.expectStatus(t, primitives.StatusPaused)
			expect(t, "content", c.probed(t, "show", "f"), "kept")
		}),
	}
}

// usageRules returns the rules about the resource usage of a sandbox.
func usageRules() []rule {
	usage := func(t testingT, s *sandbox) primitives.Usage {
		t.Helper()
		u, err := primitives.ReadUsage(t.Context(), s.EnvironmentPrimitive)
		expect(t, "error of ReadUsage", err, nil)
		return u
	}
	return []rule{
		{name: "usage grows with work and shrinks with its end", own: true, check: func(t testingT, s *sandbox) {
			if !s.Capabilities().Usage {
				_, err := primitives.ReadUsage(t.Context(), s.EnvironmentPrimitive)
				expectError(t, "ReadUsage", err, errors.ErrUnsupported)
				return
			}
			const held, burnt = 64 << 20, 300 * time.Millisecond
			before := usage(t, s)
			p := s.running(t, "hold", fmt.Sprint(held), "burn", fmt.Sprint(burnt.Milliseconds()), "out", "ready\n", "out", "ready\n", "hang")
			during := usage(t, s)
			if before.Memory >= 0 && during.Memory < before.Memory+held*3/4 {
				t.Errorf("memory %d before and %d while %d more are held", before.Memory, during.Memory, held)
			}
			if before.CPU >= 0 && during.CPU < before.CPU+burnt*3/4 {
				t.Errorf("processor time %v before and %v when %v more were taken", before.CPU, during.CPU, burnt)
			}
			if before.Processes >= 0 && during.Processes <= before.Processes {
				t.Errorf("%d processes before and %d with one more", before.Processes, during.Processes)
			}
			if during.MemoryLimit > 0 && during.Memory > during.MemoryLimit {
				t.Errorf("%d bytes of memory, the limit is %d", during.Memory, during.MemoryLimit)
			}
			expect(t, "error of Close", p.Close(), nil)
			if t.Failed() {
				return
			}
			eventually(t, s.suite.patience, func() error {
				after := usage(t, s)
				if after.CPU >= 0 && after.CPU < during.CPU {
					t.Errorf("processor time went from %v to %v", during.CPU, after.CPU)
				}
				if after.Processes >= during.Processes && after.Processes >= 0 || after.Memory > before.Memory+held/2 {
					return fmt.Errorf("the command has ended, and usage went from %+v to %+v", during, after)
				}
				return nil
			})
		}},
	}
}
