package primitivestest

import (
	"context"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// tree is one way in which a command starts processes.
type tree struct {
	what   string
	spawn  string // mode of the probe's spawn
	ignore bool   // whether the child ignores the polite signal
	needs  func(k primitives.TreeKill) bool
}

func trees() []tree {
	all := func(primitives.TreeKill) bool { return true }
	sweep := func(k primitives.TreeKill) bool { return k != primitives.TreeKillGroup }
	kernel := func(k primitives.TreeKill) bool {
		return k == primitives.TreeKillCgroup || k == primitives.TreeKillNamespace
	}
	return []tree{
		{"a child", "plain", false, all},
		{"a child that ignores SIGTERM", "plain", true, all},
		{"a child in a process group of its own", "group", false, sweep},
		{"a child in a session of its own", "setsid", false, sweep},
		{"an orphan in a session of its own", "double,quiet", false, sweep},
		{"an orphan that ignores SIGTERM", "double,quiet", true, sweep},
		{"an orphan without environment", "double,quiet,bare", false, kernel},
	}
}

// treeRules returns the rules that timeout, cancellation, Close and Terminate end every process
// that a command started, as far as the sandbox's capabilities say.
func treeRules() []rule {
	var rules []rule
	for _, tr := range trees() {
		rules = append(rules,
			rule{name: "a timeout ends " + tr.what, check: func(t testingT, s *sandbox) {
				cmd, ready := s.tree(tr)
				s.patiently(t, "all processes have started", func(short time.Duration) bool {
					cmd.Timeout = short
					p := s.start(t, t.Context(), cmd)
					expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonTimeout)
					s.expectTreeGone(t, tr)
					_, err := s.Stat(t.Context(), s.in(ready))
					return err == nil
				})
			}},
			rule{name: "a cancelled context ends " + tr.what, check: func(t testingT, s *sandbox) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cmd, ready := s.tree(tr)
				p := s.start(t, ctx, cmd)
				s.expectFile(t, ready)
				cancel()
				expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonCancelled)
				s.expectTreeGone(t, tr)
			}},
			rule{name: "closing a process ends " + tr.what, check: func(t testingT, s *sandbox) {
				cmd, ready := s.tree(tr)
				p := s.start(t, t.Context(), cmd)
				s.expectFile(t, ready)
				if err := p.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				s.expectTreeGone(t, tr)
			}},
			rule{name: "Terminate ends " + tr.what, own: true, check: func(t testingT, s *sandbox) {
				cmd, ready := s.tree(tr)
				p := s.start(t, t.Context(), cmd)
				s.expectFile(t, ready)
				report, err := s.Terminate(t.Context())
				if err != nil {
					t.Errorf("Terminate: %v", err)
				}
				expect(t, "survivors", len(report.Survivors), 0)
				expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonCancelled)
				if tr.needs(s.Capabilities().TreeKill) {
					s.suite.expectNoProcesses(t, s.token)
				} else {
					s.suite.endEscapees(t, s.token)
				}
			}},
		)
	}
	return rules
}

// tree returns a command that starts a child, and hangs like its child. The file ready appears
// when both run.
func (s *sandbox) tree(tr tree) (cmd primitives.Command, ready string) {
	child := []string{"spawn", tr.spawn, "mark", s.token}
	if tr.ignore {
		child = append(child, "ignore", "TERM")
	}
	child = append(child, "write", s.abs("child"), "", "hang", "end", "await", "child", "write", "ready", "", "hang")
	cmd = s.command(child...)
	cmd.Grace = soon
	return cmd, "ready"
}

// expectFile waits until a file of the case exists.
func (s *sandbox) expectFile(t testingT, name string) {
	t.Helper()
	eventually(t, s.suite.patience, func() error {
		_, err := s.Stat(t.Context(), s.in(name))
		return err
	})
}

// expectTreeGone checks that the sandbox has ended a tree, if it can. Otherwise it ends the
// rest itself.
func (s *sandbox) expectTreeGone(t testingT, tr tree) {
	t.Helper()
	if tr.needs(s.Capabilities().TreeKill) {
		s.expectGone(t, s.token)
		return
	}
	s.kill(t, s.token)
	s.expectGone(t, s.token)
}

// terminateRules returns the rules about the end of the sandbox.
func terminateRules() []rule { return concat(terminateReportRules(), terminateEndRules()) }

func terminateReportRules() []rule {
	return []rule{
		{name: "Terminate reports what it killed", own: true, check: func(t testingT, s *sandbox) {
			s.running(t, "spawn", "plain", "mark", s.token, "out", "ready\n", "hang", "end", "out", "ready\n", "hang")
			report := s.terminate(t)
			if len(report.Killed) < 2 {
				t.Errorf("killed %+v, want at least the two processes", report.Killed)
			}
			for _, k := range report.Killed {
				if k.PID <= 0 || strings.Contains(k.Command, s.token) {
					t.Errorf("killed %+v: want a process id, and a name without arguments", k)
				}
			}
			expect(t, "survivors", len(report.Survivors), 0)
		}},
		{name: "Terminate reports whom it had to force", check: func(t testingT, s *sandbox) {
			s.patiently(t, "the polite process leaves", func(short time.Duration) bool {
				box := s.suite.open(t)
				defer box.end(t)
				cmd := box.command("spawn", "plain", "mark", s.token, "out", "ready\n", "hang", "end", "ignore", "TERM", "out", "ready\n", "hang")
				cmd.Grace = short
				p := box.start(t, t.Context(), cmd)
				box.expectLines(t, p.Stdout(), "ready", 2)
				forced := 0
				for _, k := range box.terminate(t).Killed {
					if k.Forced {
						forced++
					}
				}
				if forced == 0 {
					t.Errorf("no process was forced")
				}
				return forced == 1
			})
		}},
		{name: "Terminate is polite first", own: true, check: func(t testingT, s *sandbox) {
			cmd := s.command("trap", "TERM", "out", "ready\n", "hang")
			cmd.Grace = time.Hour
			p := s.start(t, t.Context(), cmd)
			s.expectLines(t, p.Stdout(), "ready", 1)
			s.terminate(t)
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Reason: primitives.ReasonCancelled})
		}},
		{name: "Terminate of an idle sandbox reports nothing", own: true, check: func(t testingT, s *sandbox) {
			expect(t, "status", s.probed(t), "")
			report := s.terminate(t)
			expect(t, "killed", len(report.Killed), 0)
		}},
		{name: "Terminate again is an empty report and no error", own: true, check: func(t testingT, s *sandbox) {
			s.running(t, "out", "ready\n", "out", "ready\n", "hang")
			s.terminate(t)
			for range 2 {
				report := s.terminate(t)
				expect(t, "reported", len(report.Killed)+len(report.Survivors), 0)
			}
		}},
		{name: "Terminate runs to its end although its context is cancelled", own: true, check: func(t testingT, s *sandbox) {
			s.running(t, "ignore", "TERM", "out", "ready\n", "out", "ready\n", "hang")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := s.Terminate(ctx); err != nil {
				t.Fatalf("Terminate: %v", err)
			}
			s.suite.expectNoProcesses(t, s.token)
		}},
	}
}

func terminateEndRules() []rule {
	return []rule{
		{name: "Terminate from many sides at once ends once", own: true, check: func(t testingT, s *sandbox) {
			s.running(t, "out", "ready\n", "out", "ready\n", "hang")
			reports := make(chan primitives.TerminateReport)
			for range 4 {
				go func() {
					report, err := s.Terminate(t.Context())
					if err != nil {
						t.Errorf("Terminate: %v", err)
					}
					reports <- report
				}()
			}
			killed := 0
			for range 4 {
				killed += len((<-reports).Killed)
			}
			expect(t, "killed", killed, 1)
		}},
		{name: "Terminate ends the background of finished commands", own: true, check: func(t testingT, s *sandbox) {
			s.probed(t, "spawn", "setsid,quiet", "mark", s.token, "write", s.abs("child"), "", "hang", "end", "await", "child")
			s.terminate(t)
			if s.Capabilities().TreeKill != primitives.TreeKillGroup {
				s.suite.expectNoProcesses(t, s.token)
			}
		}},
		{name: "Terminate ends blocked readers", own: true, check: func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "hang")
			s.terminate(t)
			s.within(t, "end of the stream", func() error {
				var b [1]byte
				for {
					if _, err := p.Stdout().Read(b[:]); err != nil {
						return nil // any error will do
					}
				}
			})
		}},
		{name: "Terminate removes what was made for the sandbox", own: true, check: func(t testingT, s *sandbox) {
			session := s.Paths().Session
			s.write(t, "left", "x")
			s.terminate(t)
			witness := s.suite.witness(t)
			if witness.Paths().Session == session {
				return // every sandbox has its own file system
			}
			if _, err := witness.Stat(t.Context(), session); err == nil {
				t.Errorf("%s is still there", session)
			}
		}},
	}
}

// running starts a command that prints ready twice, and waits for that.
func (s *sandbox) running(t testingT, words ...string) primitives.Process {
	t.Helper()
	cmd := s.command(words...)
	cmd.Grace = soon
	p := s.start(t, t.Context(), cmd)
	s.expectLines(t, p.Stdout(), "ready", 2)
	return p
}

func (s *sandbox) terminate(t testingT) primitives.TerminateReport {
	t.Helper()
	report, err := s.Terminate(t.Context())
	if err != nil {
		t.Fatalf("Terminate: %v", err)
	}
	return report
}
