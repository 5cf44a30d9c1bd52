package primitives

import (
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// Check returns an error that wraps fs.ErrInvalid if the command cannot be expressed on any
// backend. Backends call it first in Exec, so that all of them reject the same commands with
// the same message.
func (c Command) Check() error {
	switch {
	case len(c.Args) == 0:
		return fmt.Errorf("%w: a command needs at least the program in Args", fs.ErrInvalid)
	case c.Args[0] == "":
		return fmt.Errorf("%w: the program in Args[0] is empty", fs.ErrInvalid)
	case strings.IndexByte(c.Dir, 0) >= 0:
		return fmt.Errorf("%w: Dir contains a NUL byte", fs.ErrInvalid)
	case strings.IndexByte(c.User, 0) >= 0:
		return fmt.Errorf("%w: User contains a NUL byte", fs.ErrInvalid)
	case c.Timeout < 0:
		return fmt.Errorf("%w: Timeout is negative; zero means none", fs.ErrInvalid)
	case c.Durable && (c.TTY != nil || c.Stdin):
		return fmt.Errorf("%w: a durable command can have neither TTY nor Stdin, which end with this program", fs.ErrInvalid)
	}
	for i, a := range c.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return fmt.Errorf("%w: Args[%d] contains a NUL byte; pass such data on standard input or in a file", fs.ErrInvalid, i)
		}
	}
	for i, e := range c.Env {
		// The value is not quoted: it may be a secret.
		if key, _, _ := strings.Cut(e, "="); key == "" || strings.IndexByte(e, 0) >= 0 {
			return fmt.Errorf("%w: Env[%d] must be KEY=value or KEY, without a NUL byte", fs.ErrInvalid, i)
		}
	}
	return nil
}

// CheckRun is Command.Check for [Run].
func CheckRun(c Command) error {
	if c.Durable || c.TTY != nil {
		return fmt.Errorf("%w: Run takes neither Durable nor TTY commands; use Exec", fs.ErrInvalid)
	}
	return c.Check()
}

// GracePeriod returns the effective grace period of the command. Zero means kill at once.
func (c Command) GracePeriod() time.Duration {
	switch {
	case c.Grace == 0:
		return DefaultGrace
	case c.Grace < 0:
		return 0
	}
	return c.Grace
}

func firstArg(c Command) string {
	if len(c.Args) == 0 {
		return ""
	}
	return c.Args[0]
}
