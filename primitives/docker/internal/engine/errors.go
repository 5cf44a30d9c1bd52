package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// kind is an error of the engine that is a sentinel of the contract, too. It has the engine's text,
// which says more.
type kind struct {
	error
	is error
}

func (k *kind) Unwrap() []error { return []error{k.error, k.is} }

// WithSentinel returns err, with its text, as an error that is sentinel, too.
func WithSentinel(err, sentinel error) error { return &kind{err, sentinel} }

// Explain adds the contract's sentinel to an error of a call of eng, and advice to an
// error of the connection. Errors of contexts and of the guest's handshake stay as they
// are.
func Explain(eng *client.Client, err error) error {
	_, unmet := errors.AsType[*guest.HandshakeError](err)
	switch {
	case err == nil:
		return nil
	case unmet:
		return err // the engine itself did not fail, as far as is known
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, ErrSilent):
		return ErrSilent // the address of the call adds nothing
	case cerrdefs.IsNotFound(err):
		return &kind{err, fs.ErrNotExist}
	case cerrdefs.IsConflict(err), cerrdefs.IsAlreadyExists(err):
		return &kind{err, fs.ErrExist}
	case cerrdefs.IsInvalidArgument(err) && os.Getenv(client.EnvOverrideAPIVersion) != "" && strings.Contains(err.Error(), "API version"):
		return &kind{fmt.Errorf("%w; unset %s, to agree on a version with the engine", err, client.EnvOverrideAPIVersion), fs.ErrInvalid}
	case cerrdefs.IsInvalidArgument(err):
		return &kind{err, fs.ErrInvalid}
	case cerrdefs.IsPermissionDenied(err), cerrdefs.IsUnauthorized(err):
		return &kind{err, fs.ErrPermission}
	case cerrdefs.IsNotImplemented(err):
		return &kind{err, errors.ErrUnsupported}
	case cerrdefs.IsUnavailable(err), cerrdefs.IsInternal(err): // the engine gives no more detail
		return &kind{err, primitives.ErrUnavailable}
	case client.IsErrConnectionFailed(err), ConnectionFailed(err):
		return unreachable(eng.DaemonHost(), err)
	}
	return err
}

// ConnectionFailed reports whether a connection could not be made, or broke.
func ConnectionFailed(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// unreachable explains why the engine cannot be reached.
func unreachable(host string, err error) error {
	if socket, isUnix := strings.CutPrefix(host, "unix://"); isUnix {
		// The engine's client drops the cause; dial again.
		conn, derr := net.Dial("unix", socket) //nolint:noctx // a local socket answers at once
		if derr == nil {
			_ = conn.Close()
		}
		if errors.Is(derr, fs.ErrPermission) {
			return &unreachableError{"add this user to the group of " + socket + " (usually docker) and log in again", derr}
		}
	}
	advice := "start the Docker engine, or name the right one in host or DOCKER_HOST"
	var (
		ssh       *sshError
		untrusted *tls.CertificateVerificationError
		noTLS     tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &ssh):
		advice = "make \"ssh " + ssh.host + " docker version\" work without questions first"
		if ssh.stderr != "" {
			err = fmt.Errorf("%w: %s", err, ssh.stderr)
		}
	case errors.As(err, &untrusted):
		advice = "give the authority that signed the engine's certificate in ca.pem (of DOCKER_CERT_PATH, or of the Docker context)"
	case errors.As(err, &noTLS):
		advice = "the engine does not speak TLS there; unset DOCKER_TLS_VERIFY, or name its other port"
	case isRefusal(err):
		return &kind{
			&unreachableError{"give a certificate that the Docker engine accepts in cert.pem and key.pem (of DOCKER_CERT_PATH, or of the Docker context)", err},
			fs.ErrPermission,
		}
	}
	return &unreachableError{advice, err}
}

// unreachableError is a primitives.ErrUnavailable with advice.
type unreachableError struct {
	advice string
	cause  error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("%v: %v; %s", primitives.ErrUnavailable, e.cause, e.advice)
}

func (e *unreachableError) Unwrap() []error { return []error{primitives.ErrUnavailable, e.cause} }

// Advice returns the advice alone, for programs that show it separately.
func (e *unreachableError) Advice() string { return e.advice }
