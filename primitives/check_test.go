package primitives_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestCommandCheckRefusesWhatNoBackendCanExpress(t *testing.T) {
	ok := []string{"true"}
	for _, tt := range []struct {
		rule string
		cmd  primitives.Command
		says string
	}{
		{"no arguments", primitives.Command{}, "Args"},
		{"empty program", primitives.Command{Args: []string{"", "x"}}, "Args[0]"},
		{"NUL in an argument", primitives.Command{Args: []string{"echo", "a\x00b"}}, "Args[1]"},
		{"NUL in the directory", primitives.Command{Args: ok, Dir: "a\x00"}, "Dir"},
		{"NUL in the user", primitives.Command{Args: ok, User: "a\x00"}, "User"},
		{"variable without a name", primitives.Command{Args: ok, Env: []string{"A=1", "=2"}}, "Env[1]"},
		{"NUL in a variable", primitives.Command{Args: ok, Env: []string{"A=\x00"}}, "Env[0]"},
		{"negative timeout", primitives.Command{Args: ok, Timeout: -time.Second}, "Timeout"},
		{"durable with input", primitives.Command{Args: ok, Durable: true, Stdin: true}, "durable"},
		{"durable with a terminal", primitives.Command{Args: ok, Durable: true, TTY: &primitives.TerminalSize{}}, "durable"},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			err := tt.cmd.Check()
			if !errors.Is(err, fs.ErrInvalid) {
				t.Fatalf("Check() = %v, want fs.ErrInvalid", err)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Check() = %q does not name %q", err, tt.says)
			}
		})
	}
}

func TestCommandCheckDoesNotShowValuesOfVariables(t *testing.T) {
	cmd := primitives.Command{Args: []string{"true"}, Env: []string{"KEY=hunter2\x00"}}
	if err := cmd.Check(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Check() = %v, want an error without the value", err)
	}
}

func TestCommandCheckAllowsAnyBytesButNUL(t *testing.T) {
	cmd := primitives.Command{
		Args: []string{"printf", "", "\n", "\xff\xfe", strings.Repeat("x", 1<<20)},
		Env:  []string{"EMPTY=", "NEWLINE=a\nb", "EQUALS=a=b", "REMOVED"},
	}
	if err := cmd.Check(); err != nil {
		t.Errorf("Check() = %v", err)
	}
}

func TestGracePeriod(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{
		0:           primitives.DefaultGrace,
		-1:          0,
		time.Second: time.Second,
	} {
		if got := (primitives.Command{Grace: grace}).GracePeriod(); got != want {
			t.Errorf("Grace %v gives %v, want %v", grace, got, want)
		}
	}
}

func TestErrorSaysWhereAndKeepsWhat(t *testing.T) {
	err := error(&primitives.Error{Op: "open", Backend: "local", Target: "a b\n", Err: fs.ErrNotExist})
	if got, want := err.Error(), `local: open "a b\n": file does not exist`; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the sentinel is not in the chain")
	}
	long := (&primitives.Error{Op: "exec", Target: strings.Repeat("x", 1<<20), Err: fs.ErrInvalid}).Error()
	if len(long) > 1000 {
		t.Errorf("a target of 1 MiB makes a message of %d bytes", len(long))
	}
}

func TestPathsAreAllBelowTheSession(t *testing.T) {
	p := primitives.PathsIn("/s")
	seen := map[string]bool{}
	for _, dir := range p.All() {
		if dir != "/s" && !strings.HasPrefix(dir, "/s/") {
			t.Errorf("%s is not below the session folder", dir)
		}
		if seen[dir] {
			t.Errorf("%s is used twice", dir)
		}
		seen[dir] = true
	}
	if len(seen) != 5 {
		t.Errorf("All() has %d folders, want 5", len(seen))
	}
}
