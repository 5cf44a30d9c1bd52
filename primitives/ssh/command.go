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

// endTimeout is how long the ssh command may take to exit.
const endTimeout = 2 * time.Second

// command returns an ssh command that runs a script with these arguments in the shell sh of the
// remote machine. It never asks the user for a password.
func command(ctx context.Context, host, script string, args ...string) *exec.Cmd {
	words := []string{"exec", "sh", "-c", quote(script), "sh"}
	for _, a := range args {
		words = append(words, quote(a))
	}
	// The command gets the whole environment: it is the user's program, with the user's
	// configuration. ControlMaster=no: the connection must not become the shared connection of
	// the user's sessions.
	cmd := exec.CommandContext(ctx, "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ControlMaster=no",
		"--", host, strings.Join(words, " "))
	cmd.SysProcAttr = attributes()
	cmd.WaitDelay = endTimeout // a shared ssh connection keeps standard error open
	return cmd
}

// quote makes one word of s for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// maxOutput is how many bytes a script may print.
const maxOutput = 16 << 20

// How long a script may run: a question to the machine, and the copy of a runner.
const (
	askTimeout     = 2 * time.Minute
	installTimeout = 15 * time.Minute
)

// run runs a script to its end and returns its standard output. A script that runs longer than
// timeout, or prints too much, is ended.
func run(ctx context.Context, timeout time.Duration, host string, stdin io.Reader, script string, args ...string) ([]byte, error) {
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer time.AfterFunc(timeout, func() {
		end(fmt.Errorf("%w: ssh %s does not end in %v; look whether \"ssh %[2]s true\" does", primitives.ErrUnavailable, host, timeout))
	}).Stop()
	var stderr tail.Buffer
	out := limited{left: maxOutput, exceeded: end}
	cmd := command(running, host, script, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &stderr
	runtime.LockOSThread() // the command ends with this thread, see attributes
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	switch {
	case err == nil || ctx.Err() != nil:
		return out.buf.Bytes(), ctx.Err()
	case running.Err() != nil:
		return nil, context.Cause(running)
	}
	return out.buf.Bytes(), explain(host, err, stderr.String())
}

// limited is a buffer with a maximum size. It does not embed the buffer, whose ReadFrom has none.
type limited struct {
	buf      bytes.Buffer
	left     int
	exceeded func(error) // ends the writer, which would else wait for a reader
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		err := fmt.Errorf("%w: the other machine prints more than %d bytes", primitives.ErrLimit, maxOutput)
		l.exceeded(err)
		return 0, err
	}
	return l.buf.Write(p)
}

// explain returns the error of a failed ssh command, with the end of its standard error.
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
	ended   chan struct{} // closed when the command has exited
	err     error         // of the command; valid when ended is closed
	closing sync.Once
	// polite means that the guest ends by itself when the stream is closed, and with it the
	// command.
	polite atomic.Bool
}

// start starts a script. The stream lives until it is closed, even if ctx is done.
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
		runtime.LockOSThread() // the command ends with this thread, see attributes
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.ended)
		}
	}()
	err = <-started
	_, _ = theirIn.Close(), theirOut.Close() // the child has its own copies
	c.ReadWriteCloser = guest.Stdio(out, in)
	if err != nil {
		return nil, errors.Join(explain(host, err, ""), c.ReadWriteCloser.Close())
	}
	return c, nil
}

// Stderr returns why ssh could not connect, or else the end of its standard error.
func (c *conn) Stderr() string {
	if c.awaitEnd() && c.cmd.ProcessState.ExitCode() == failedStatus {
		return explain(c.host, c.err, c.stderr.String()).Error()
	}
	return c.stderr.String()
}

// Close closes the stream and ends the ssh command, but not the remote program.
func (c *conn) Close() error {
	c.closing.Do(func() {
		_ = c.ReadWriteCloser.Close()
		if !c.polite.Load() {
			_ = c.cmd.Process.Signal(syscall.SIGTERM) // the remote guest may stay and wait for another host
		}
	})
	return nil
}

// awaitEnd waits up to endTimeout for the command to exit, and reports whether it has.
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

// join waits until a closed command has exited. It kills the command after endTimeout.
func (c *conn) join() {
	if !c.awaitEnd() {
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}
