package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/docker/cli/cli/connhelper"
)

// sshIdle is how long an idle login is kept for the next request.
const sshIdle = 10 * time.Second

// dialSSH connects to an engine as the docker command does: by the ssh command, with the user's own
// configuration, and the docker command on the remote machine, which joins its standard streams to
// the engine. ssh does not prompt.
func dialSSH(u *url.URL) (dialer, error) {
	host, user := u.Hostname(), u.User.Username()
	if strings.HasPrefix(host, "-") || strings.HasPrefix(user, "-") {
		return nil, fmt.Errorf("%w: the user and the host of an ssh address must not begin with a dash", fs.ErrInvalid)
	}
	// A master process that ssh leaves in the background would hold its standard error, and Close
	// would wait for it.
	helper, err := connhelper.GetConnectionHelperWithSSHOpts(u.String(), []string{"-o", "BatchMode=yes", "-o", "ControlMaster=no"})
	if err != nil {
		return nil, fmt.Errorf("%w: address of the Docker engine: %w", fs.ErrInvalid, err)
	}
	return func(ctx context.Context) (net.Conn, error) { return startSSH(ctx, host, helper) }, nil
}

// sshConn is a connection through an ssh command.
type sshConn struct {
	net.Conn
	host   string
	close  func() error
	failed atomic.Pointer[sshError] // nil until ssh has said why it failed

	reading sync.Mutex
	pending []byte // what Write has read and Read has not returned
}

// startSSH starts the ssh command on a thread that lives as long as the connection: the kernel
// kills the command when the thread that started it ends. If ssh fails, each Read and Write returns
// the error: the transport does both at once, and may report either.
func startSSH(ctx context.Context, host string, helper *connhelper.ConnectionHelper) (net.Conn, error) {
	c := &sshConn{host: host}
	started, closed := make(chan error, 1), make(chan struct{})
	var thread sync.WaitGroup
	thread.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		c.Conn, err = helper.Dialer(ctx, "", "")
		if started <- err; err == nil {
			<-closed
		}
	})
	if err := <-started; err != nil {
		thread.Wait()
		return nil, &sshError{host: host, err: fmt.Errorf("install the ssh command: %w", err)}
	}
	c.close = sync.OnceValue(func() error {
		err := c.Conn.Close()
		close(closed)
		thread.Wait()
		return err
	})
	return c, nil
}

func (c *sshConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(c.pending) > 0 {
		n := copy(p, c.pending)
		c.pending = c.pending[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	return n, c.explain(err)
}

// Write returns why ssh failed when ssh no longer reads: only Read waits for the end of ssh.
func (c *sshConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		c.await()
	}
	return n, c.explain(err)
}

// await returns when ssh has ended, or when it answers something: a server may answer before it has
// read all of a request.
func (c *sshConn) await() {
	c.reading.Lock()
	defer c.reading.Unlock()
	b := make([]byte, 1)
	n, err := c.Conn.Read(b)
	c.pending = append(c.pending, b[:n]...)
	_ = c.explain(err) // which keeps it
}

// Close ends the ssh command and returns when it has ended.
func (c *sshConn) Close() error { return c.close() }

// explain returns an error of the ssh command as an *sshError, also when the connection has been
// closed because of it. EOF and a closed connection are not failures of ssh.
func (c *sshConn) explain(err error) error {
	failed := c.failed.Load()
	switch {
	case err == nil:
		return nil
	case failed != nil:
		return failed
	case errors.Is(err, io.EOF), errors.Is(err, fs.ErrClosed):
		return err
	}
	_, said, found := strings.Cut(err.Error(), ": stderr=")
	if !found {
		said = err.Error()
	}
	failed = &sshError{host: c.host, err: errors.New("the command has failed"), stderr: strings.TrimSpace(said)}
	if found {
		c.failed.Store(failed)
	}
	return failed
}

// sshError says why ssh ended. Error omits the output of ssh: the engine's client searches errors
// for words, and drops those in which it finds them.
type sshError struct {
	host   string
	err    error
	stderr string
}

func (e *sshError) Error() string { return fmt.Sprintf("ssh %s: %v", e.host, e.err) }

func (e *sshError) Unwrap() error { return e.err }
