package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// wrap says where an error came from.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}

// kind is an error of the engine as the contract's sentinel. Its text is the
// engine's: it says more.
type kind struct {
	error
	is error
}

func (k *kind) Unwrap() []error { return []error{k.error, k.is} }

// explain adds the contract's sentinel to an error of the engine, and to one of
// the way to it what can be done.
func explain(eng *client.Client, err error) error {
	switch {
	case err == nil:
		return nil
	case client.IsErrConnectionFailed(err):
		return unreachable(eng.DaemonHost(), err)
	case cerrdefs.IsNotFound(err):
		return &kind{err, fs.ErrNotExist}
	case cerrdefs.IsConflict(err), cerrdefs.IsAlreadyExists(err):
		return &kind{err, fs.ErrExist}
	case cerrdefs.IsInvalidArgument(err):
		return &kind{err, fs.ErrInvalid}
	case cerrdefs.IsPermissionDenied(err), cerrdefs.IsUnauthorized(err):
		return &kind{err, fs.ErrPermission}
	case cerrdefs.IsNotImplemented(err):
		return &kind{err, errors.ErrUnsupported}
	case cerrdefs.IsUnavailable(err):
		return &kind{err, primitives.ErrUnavailable}
	}
	return err
}

// unreachable explains why there is no way to the engine.
func unreachable(host string, err error) error {
	socket, isUnix := strings.CutPrefix(host, "unix://")
	if isUnix {
		// The engine's client forgets the cause; ask again.
		conn, derr := net.Dial("unix", socket) //nolint:noctx // a local socket answers at once
		if derr == nil {
			_ = conn.Close()
		}
		if errors.Is(derr, fs.ErrPermission) {
			return fmt.Errorf("%w: add this user to the group of %s (usually docker) and log in again: %w", primitives.ErrUnavailable, socket, derr)
		}
	}
	return fmt.Errorf("%w: start the Docker engine, or name the right one in host or DOCKER_HOST: %w", primitives.ErrUnavailable, err)
}
