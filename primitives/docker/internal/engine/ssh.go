package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/tail"
)

const (
	// sshIdle is for how long a login is kept for the next request.
	sshIdle = 10 * time.Second
	// sshPatience is how long ssh may take to end.
	sshPatience = 2 * time.Second
)

// dialSSH reaches an engine as the docker command does: by the ssh command, with
// the user's own configuration, and the docker command over there, which joins
// its standard streams to the engine. Nobody is asked for passwords.
func dialSSH(u *url.URL) (dialer, error) {
	host, user := u.Hostname(), u.User.Username()
	if strings.HasPrefix(host, "-") || strings.HasPrefix(user, "-") {
		return nil, fmt.Errorf("%w: the user and the host of an ssh address must not begin with a dash", fs.ErrInvalid)
	}
	args := []string{"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30"}
	if user != "" {
		args = append(args, "-l", user)
	}
	if port := u.Port(); port != "" {
		args = append(args, "-p", port)
	}
	args = append(args, "--", host, "docker")
	if socket := u.Path; socket != "" && socket != "/" {
		// The shell over there reads it.
		args = append(args, "--host", "'unix://"+strings.ReplaceAll(socket, "'", `'\''`)+"'")
	}
	args = append(args, "system", "dial-stdio")
	return func(ctx context.Context) (net.Conn, error) { return startSSH(ctx, host, args) }, nil
}

// sshConn is a connection through a child process.
type sshConn struct {
	*net.UnixConn // of which the child has the other end as its standard streams
	host          string
	cmd           *exec.Cmd
	stderr        tail.Buffer
	closing       sync.Once
	ended         chan struct{} // closed when the child was waited for
	err           error         // of the child; valid when it has ended
}

// startSSH starts the child. That it fails is seen by the first to read.
func startSSH(ctx context.Context, host string, args []string) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	// It lives as long as the connection, whatever ctx was for. It has the whole
	// environment: it is the user's program, with the user's configuration.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "ssh", args...)
	c := &sshConn{UnixConn: ours, host: host, cmd: cmd, ended: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, &c.stderr
	cmd.WaitDelay = sshPatience / 10                     // a connection that ssh shares holds standard error
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the interrupt key is not for it
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return nil, &sshError{host: host, err: fmt.Errorf("install the ssh command: %w", err)}
	}
	go func() {
		c.err = cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// socketPair returns a connection and its other end for a child.
func socketPair() (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	file, theirs := os.NewFile(uintptr(fds[0]), "ssh"), os.NewFile(uintptr(fds[1]), "ssh")
	conn, err := net.FileConn(file) // has a descriptor of its own
	_ = file.Close()
	ours, ok := conn.(*net.UnixConn)
	if err == nil && !ok {
		err = errors.ErrUnsupported
	}
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// Read reads what the engine sends. An end that ssh reports as its failure is no
// end of the engine's.
func (c *sshConn) Read(p []byte) (int, error) {
	n, err := c.UnixConn.Read(p)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		if failure := c.failure(); failure != nil {
			err = failure
		}
	}
	return n, err
}

func (c *sshConn) Write(p []byte) (int, error) {
	n, err := c.UnixConn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		if failure := c.failure(); failure != nil {
			err = failure
		}
	}
	return n, err
}

// failure is why the child has ended; nil if it has ended well.
func (c *sshConn) failure() error {
	if !c.await(sshPatience) || c.err == nil || errors.Is(c.err, exec.ErrWaitDelay) {
		return nil
	}
	return &sshError{host: c.host, err: c.err, stderr: c.stderr.String()}
}

// await reports whether the child ends in time.
func (c *sshConn) await(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.ended:
		return true
	case <-timer.C:
		return false
	}
}

// Close ends the child and returns when it has ended.
func (c *sshConn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		err = c.UnixConn.Close()
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if !c.await(sshPatience) {
			_ = c.cmd.Process.Kill()
			<-c.ended
		}
	})
	return err
}

// sshError says why ssh ended. What it wrote is not in Error: the engine's client
// looks for words in errors, and forgets those in which it finds them.
type sshError struct {
	host   string
	err    error
	stderr string
}

func (e *sshError) Error() string { return fmt.Sprintf("ssh %s: %v", e.host, e.err) }

func (e *sshError) Unwrap() error { return e.err }
