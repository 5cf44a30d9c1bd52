package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// failedStatus is the ssh command's own status when it cannot connect.
const failedStatus = 255

// endTimeout is how long the ssh command may take to end.
const endTimeout = 2 * time.Second

// command is the user's ssh command, which runs a script of the shell sh on the other
// machine with these arguments. The user is not asked for passwords.
func command(ctx context.Context, host, script string, args ...string) *exec.Cmd {
	words := []string{"exec", "sh", "-c", quote(script), "sh"}
	for _, a := range args {
		words = append(words, quote(a))
	}
	// It has the whole environment: it is the user's program, with the user's
	// configuration.
	// A connection of its own must not become one that the user's sessions share.
	cmd := exec.CommandContext(ctx, "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ControlMaster=no",
		"--", host, strings.Join(words, " "))
	cmd.SysProcAttr = attributes()
	cmd.WaitDelay = endTimeout // a connection that ssh shares holds standard error
	return cmd
}

// quote makes one word of s for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// maxOutput is how much a script may print.
const maxOutput = 16 << 20

// run runs a script to its end and returns what it prints.
func run(ctx context.Context, host string, stdin io.Reader, script string, args ...string) ([]byte, error) {
	var stderr tail.Buffer
	out := limited{left: maxOutput}
	cmd := command(ctx, host, script, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &stderr
	runtime.LockOSThread() // with which the command ends, see attributes
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if err == nil || ctx.Err() != nil {
		return out.Bytes(), ctx.Err()
	}
	return out.Bytes(), explain(host, err, stderr.String())
}

// limited is a buffer that refuses to become larger.
type limited struct {
	bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, fmt.Errorf("%w: the other machine prints more than %d bytes", primitives.ErrLimit, maxOutput)
	}
	return l.Buffer.Write(p)
}

// explain says why the ssh command failed, with the last words on standard error.
func explain(host string, err error, said string) error {
	if said != "" {
		said = ": " + said
	}
	var ended *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: %w; install OpenSSH's client", primitives.ErrUnavailable, err)
	case errors.As(err, &ended) && ended.ExitCode() == failedStatus:
		return fmt.Errorf("%w: ssh %s%s; make \"ssh %s true\" work without questions", primitives.ErrUnavailable, host, said, host)
	}
	return fmt.Errorf("%w: ssh %s: %w%s", primitives.ErrUnavailable, host, err, said)
}

// conn is the byte stream of a guest: the standard streams of an ssh command.
type conn struct {
	io.ReadWriteCloser
	host    string
	cmd     *exec.Cmd
	stderr  tail.Buffer
	ended   chan struct{} // closed when the command has ended
	err     error         // of the command; valid then
	closing sync.Once
	// polite says that the guest ends by itself when the stream is closed, and the
	// command with it.
	polite atomic.Bool
}

// start starts a script. The stream lives until it is closed, whatever ctx was for.
func start(ctx context.Context, host, script string, args ...string) (*conn, error) {
	cmd := command(context.WithoutCancel(ctx), host, script, args...)
	c := &conn{host: host, cmd: cmd, ended: make(chan struct{})}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), theirIn.Close())
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirIn, theirOut, &c.stderr
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // with which the command ends, see attributes
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.ended)
		}
	}()
	err = <-started
	_, _ = theirIn.Close(), theirOut.Close() // the child has its own
	c.ReadWriteCloser = guest.Stdio(out, in)
	if err != nil {
		return nil, errors.Join(explain(host, err, ""), c.ReadWriteCloser.Close())
	}
	return c, nil
}

// Stderr returns why the command has ended, or the end of what came on standard error.
func (c *conn) Stderr() string {
	if c.awaitEnd() && c.cmd.ProcessState.ExitCode() == failedStatus {
		return explain(c.host, c.err, c.stderr.String()).Error()
	}
	return c.stderr.String()
}

// Close closes the stream and ends the command, not what that runs on the other machine.
func (c *conn) Close() error {
	c.closing.Do(func() {
		_ = c.ReadWriteCloser.Close()
		if !c.polite.Load() {
			_ = c.cmd.Process.Signal(syscall.SIGTERM) // the guest over there may wait for another program
		}
	})
	return nil
}

// awaitEnd reports whether the command has ended, for which it waits a moment.
func (c *conn) awaitEnd() bool {
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-c.ended:
		return true
	case <-timer.C:
		return false
	}
}

// join waits for the end of a command that was closed.
func (c *conn) join() {
	if !c.awaitEnd() {
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}
