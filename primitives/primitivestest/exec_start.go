package primitivestest

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

var errInvalid = fs.ErrInvalid // a short name for a sentinel

// expectNoStart starts a command and expects Exec to refuse it.
func (s *sandbox) expectNoStart(t testingT, cmd primitives.Command, want ...error) {
	t.Helper()
	p, err := s.Exec(t.Context(), cmd)
	if err == nil {
		t.Errorf("Exec %q in %q: no error", shorten(cmd.Args), cmd.Dir)
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		return
	}
	expectError(t, "Exec", err, want...)
}

// startRules returns the rules that a command that cannot be started is an error of Exec with
// its reason, not an exit status.
func startRules() []rule { return concat(programStartRules(), workingDirRules(), invalidRules()) }

func programStartRules() []rule {
	return []rule{
		{name: "a missing program in PATH is ErrCommandNotFound", check: func(t testingT, s *sandbox) {
			s.expectNoStart(t, primitives.Command{Args: []string{"no-such-program-anywhere"}}, primitives.ErrCommandNotFound, fs.ErrNotExist)
		}},
		{name: "a missing program by its path is ErrCommandNotFound", check: func(t testingT, s *sandbox) {
			s.expectNoStart(t, primitives.Command{Args: []string{s.abs("nothing")}}, primitives.ErrCommandNotFound, fs.ErrNotExist)
			s.expectNoStart(t, primitives.Command{Args: []string{"./nothing"}}, primitives.ErrCommandNotFound, fs.ErrNotExist)
		}},
		{name: "a file without execute permission is fs.ErrPermission", check: func(t testingT, s *sandbox) {
			s.write(t, "plain", "#!/bin/sh\n")
			s.expectNoStart(t, primitives.Command{Args: []string{s.abs("plain")}}, fs.ErrPermission)
		}},
		{name: "a directory cannot be run", check: func(t testingT, s *sandbox) {
			s.expectNoStart(t, primitives.Command{Args: []string{s.abs()}})
		}},
		{name: "a file that is no program is an error of Exec", check: func(t testingT, s *sandbox) {
			s.probed(t, "write", "garbage", "\x01\x02\x03", "chmod", "755", "garbage")
			s.expectNoStart(t, primitives.Command{Args: []string{s.abs("garbage")}})
		}},
	}
}

func workingDirRules() []rule {
	return []rule{
		{name: "a missing working directory is ErrWorkingDir and fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			cmd := s.command()
			cmd.Dir = s.in("missing")
			s.expectNoStart(t, cmd, primitives.ErrWorkingDir, fs.ErrNotExist)
			cmd.Dir = s.abs("missing")
			s.expectNoStart(t, cmd, primitives.ErrWorkingDir, fs.ErrNotExist)
		}},
		{name: "a missing working directory is not a missing program", check: func(t testingT, s *sandbox) {
			cmd := s.command()
			cmd.Dir = s.abs("missing")
			p, err := s.Exec(t.Context(), cmd)
			if err == nil {
				t.Errorf("Exec: no error, close gave %v", p.Close())
			}
			if errors.Is(err, primitives.ErrCommandNotFound) {
				t.Errorf("Exec: %v is ErrCommandNotFound", err)
			}
		}},
		{name: "a working directory that was removed is ErrWorkingDir", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "gone")
			cmd := s.command()
			cmd.Dir = s.in("gone")
			expect(t, "status", s.run(t, cmd, primitives.RunOptions{}).Status.Success(), true)
			s.probed(t, "rm", "gone")
			s.expectNoStart(t, cmd, primitives.ErrWorkingDir, fs.ErrNotExist)
		}},
		{name: "a file as working directory is ErrWorkingDir and ErrNotDirectory", check: func(t testingT, s *sandbox) {
			s.write(t, "file", "")
			cmd := s.command()
			cmd.Dir = s.in("file")
			s.expectNoStart(t, cmd, primitives.ErrWorkingDir, primitives.ErrNotDirectory)
		}},
		{name: "a forbidden working directory is ErrWorkingDir and fs.ErrPermission", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "closed", "chmod", "000", "closed")
			cmd := s.command("out", "in")
			cmd.Dir = s.in("closed")
			if s.probed(t, "may-enter", "closed") == "true" {
				expect(t, "output", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), "in")
			} else {
				s.expectNoStart(t, cmd, primitives.ErrWorkingDir, fs.ErrPermission)
			}
			s.probed(t, "chmod", "755", "closed")
		}},
		{name: "a relative working directory outside the workspace is ErrPathEscape", check: func(t testingT, s *sandbox) {
			cmd := s.command()
			cmd.Dir = "../.."
			s.expectNoStart(t, cmd, primitives.ErrPathEscape)
		}},
		{name: "a context that is already cancelled leaves nothing running", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			p, err := s.Exec(ctx, s.command("hang"))
			if err == nil {
				expect(t, "reason", s.wait(t, p).Reason, primitives.ReasonCancelled)
				err = p.Close()
			} else if errors.Is(err, context.Canceled) {
				err = nil
			}
			if err != nil {
				t.Errorf("Exec with a cancelled context: %v", err)
			}
			s.expectGone(t, s.token)
		}},
	}
}

// invalidRules returns the rules that Exec refuses a command that makes no sense on any backend
// before anything happens.
func invalidRules() []rule {
	var rules []rule
	for _, c := range []struct {
		what   string
		change func(cmd *primitives.Command)
	}{
		{"no arguments", func(cmd *primitives.Command) { cmd.Args = nil }},
		{"an empty program", func(cmd *primitives.Command) { cmd.Args[0] = "" }},
		{"a NUL in an argument", func(cmd *primitives.Command) { cmd.Args = append(cmd.Args, "a\x00b") }},
		{"a NUL in the working directory", func(cmd *primitives.Command) { cmd.Dir = "a\x00b" }},
		{"a NUL in the environment", func(cmd *primitives.Command) { cmd.Env = []string{"A=b\x00c"} }},
		{"an environment entry without a key", func(cmd *primitives.Command) { cmd.Env = []string{"=value"} }},
		{"a negative timeout", func(cmd *primitives.Command) { cmd.Timeout = -time.Second }},
		{"a durable command with standard input", func(cmd *primitives.Command) { cmd.Durable, cmd.Stdin = true, true }},
		{"a durable command on a terminal", func(cmd *primitives.Command) {
			cmd.Durable, cmd.TTY = true, &primitives.TerminalSize{Rows: 1, Cols: 1}
		}},
	} {
		rules = append(rules, rule{name: c.what + " is fs.ErrInvalid", check: func(t testingT, s *sandbox) {
			cmd := s.command("out", "ran")
			c.change(&cmd)
			s.expectNoStart(t, cmd, errInvalid)
			_, err := primitives.Run(t.Context(), s.EnvironmentPrimitive, cmd, primitives.RunOptions{})
			if !cmd.Stdin {
				expectError(t, "Run", err, errInvalid)
			}
		}})
	}
	return rules
}
