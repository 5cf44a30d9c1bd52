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

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// explainStart looks for the reason why the engine could not start a container
// where it has no kind of error for it, and then looks itself.
func explainStart(ctx context.Context, eng *client.Client, id string, cfg Config, err error) error {
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
