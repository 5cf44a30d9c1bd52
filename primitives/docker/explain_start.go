package docker

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// explainJoin looks whether a container has ended meanwhile where there was no way
// into it.
func explainJoin(ctx context.Context, eng *client.Client, id string, err error) error {
	if ctx.Err() != nil {
		return explain(eng, err)
	}
	attempts := 1
	if brokeOff(err) {
		attempts = fateAttempts // the stream may be ahead of the engine
	}
	tick := time.NewTicker(fatePause)
	defer tick.Stop()
	for range attempts {
		found, ierr := eng.ContainerInspect(ctx, id)
		switch {
		case cerrdefs.IsNotFound(ierr):
			return fmt.Errorf("%w: its container has ended just now", fs.ErrNotExist)
		case ierr != nil:
			return explain(eng, ierr)
		case found.State == nil || !found.State.Running:
			return notRunning(found)
		}
		<-tick.C
	}
	return explain(eng, err)
}

// explainStart looks for the reason why the engine could not start a container
// where it has no kind of error for it, and then looks itself.
func explainStart(ctx context.Context, eng *client.Client, id string, cfg Config, err error) error {
	if _, unmet := errors.AsType[*guest.HandshakeError](err); unmet && ctx.Err() == nil {
		return fmt.Errorf("set runner to the envrunner program of this version, unless the cause is another: the guest did not answer: %w", err)
	}
	if !cerrdefs.IsInternal(err) {
		return err
	}
	if name, _, _ := strings.Cut(cfg.User, ":"); name != "" && !hasUser(ctx, eng, id, name) {
		return fmt.Errorf("%w: user: the image has no %q in /etc/passwd; name another one, or a number: %w", primitives.ErrUnknownUser, name, err)
	}
	if strings.HasPrefix(eng.DaemonHost(), "unix://") {
		if taken := cfg.takenPort(ctx); taken != nil {
			return fmt.Errorf("%w: %w", taken, err)
		}
	}
	return err
}

// maxPasswd bounds what is read of the file of users.
const maxPasswd = 1 << 20

// hasUser reports whether a container has a user, as far as that can be found
// out. Numbers need not be in its file.
func hasUser(ctx context.Context, eng *client.Client, id, name string) bool {
	if _, err := strconv.Atoi(name); err == nil {
		return true
	}
	body, _, err := eng.CopyFromContainer(ctx, id, "/etc/passwd")
	if err != nil {
		return !cerrdefs.IsNotFound(err)
	}
	defer func() { _ = body.Close() }()
	archive := tar.NewReader(body)
	if h, err := archive.Next(); err != nil || h.Typeflag != tar.TypeReg {
		return true
	}
	lines := bufio.NewReader(io.LimitReader(archive, maxPasswd))
	for {
		line, err := lines.ReadString('\n')
		if strings.HasPrefix(line, name+":") {
			return true
		}
		if err != nil {
			return !errors.Is(err, io.EOF)
		}
	}
}

// takenPort is an error about the first port that another program of this machine
// has.
func (c Config) takenPort(ctx context.Context) error {
	for i, p := range c.Ports {
		p = p.normal()
		if p.Host == 0 || p.Protocol != "tcp" {
			continue
		}
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(p.HostIP, strconv.Itoa(p.Host)))
		switch {
		case err == nil:
			_ = l.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("%w: ports[%d].host: %d is taken on this machine; choose another one, or 0", fs.ErrExist, i, p.Host)
		}
	}
	return nil
}
