package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// wrap adds the operation and its target to an error.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}

// kind gives an error of Modal the meaning of one of the contract's sentinels. It keeps Modal's
// text, which says more.
type kind struct {
	error
	is error
}

func (k *kind) Unwrap() []error { return []error{k.error, k.is} }

// explain adds the contract's sentinel to an error of the SDK and, where known, what to do.
func explain(err error) error {
	var known *kind
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if is := sentinelOf(err); is != nil {
		return &kind{err, is}
	}
	s, ok := status.FromError(err)
	if !ok {
		return explainText(err)
	}
	switch s.Code() {
	case codes.NotFound:
		return &kind{err, fs.ErrNotExist}
	case codes.AlreadyExists:
		return &kind{err, fs.ErrExist}
	case codes.InvalidArgument, codes.OutOfRange:
		return &kind{err, fs.ErrInvalid}
	case codes.Unauthenticated, codes.PermissionDenied:
		return &kind{fmt.Errorf("%w; %s", err, tokenAdvice), fs.ErrPermission}
	case codes.Unimplemented:
		return &kind{err, errors.ErrUnsupported}
	case codes.ResourceExhausted:
		return &kind{fmt.Errorf("%w; try again later, or with fewer sandboxes at once", err), primitives.ErrUnavailable}
	case codes.Canceled:
		return &kind{err, context.Canceled}
	case codes.DeadlineExceeded:
		return &kind{err, errors.Join(context.DeadlineExceeded, primitives.ErrUnavailable)} // the caller's deadline or Modal's
	case codes.Unavailable:
		return &kind{fmt.Errorf("%w; check that Modal can be reached from here, and MODAL_SERVER_URL", err), primitives.ErrUnavailable}
	}
	return &kind{err, primitives.ErrUnavailable}
}

const tokenAdvice = "get a token with \"modal token new\", or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"

// sentinelOf returns the sentinel for an error of the SDK's own types, or nil if it is unknown.
func sentinelOf(err error) error {
	var (
		notFound  sdk.NotFoundError
		exists    sdk.AlreadyExistsError
		invalid   sdk.InvalidError
		conflict  sdk.ConflictError
		exhausted sdk.ResourceExhaustedError
		timeout   sdk.TimeoutError
		slow      sdk.SandboxTimeoutError
		closed    sdk.ClientClosedError
		remote    sdk.RemoteError
		execution sdk.ExecutionError
		forbidden sdk.SandboxFilesystemPermissionError
		files     sdk.SandboxFilesystemError
	)
	switch {
	case errors.As(err, &notFound):
		return fs.ErrNotExist
	case errors.As(err, &exists):
		return fs.ErrExist
	case errors.As(err, &invalid), errors.As(err, &remote): // such as an image that cannot be built
		return fs.ErrInvalid
	case errors.As(err, &forbidden):
		return fs.ErrPermission
	case errors.As(err, &conflict), errors.As(err, &exhausted), errors.As(err, &timeout), errors.As(err, &slow),
		errors.As(err, &closed), errors.As(err, &execution), errors.As(err, &files):
		return primitives.ErrUnavailable
	}
	return nil
}

// explainText classifies errors that the SDK returns as text only.
func explainText(err error) error {
	if strings.Contains(err.Error(), "missing credentials") {
		return &kind{fmt.Errorf("%w; %s", err, tokenAdvice), fs.ErrPermission}
	}
	return err
}

func isNotFound(err error) bool {
	var notFound sdk.NotFoundError
	return errors.As(err, &notFound) || errors.Is(err, fs.ErrNotExist) || status.Code(err) == codes.NotFound
}

// errTimeout, errIdle and errGone say why a sandbox has ended.
var (
	errTimeout = fmt.Errorf("%w: it has become as old as its timeout allows: %w", primitives.ErrUnavailable, os.ErrProcessDone)
	errIdle    = fmt.Errorf("%w: no client was connected to it for its grace period: %w", primitives.ErrUnavailable, os.ErrProcessDone)
	errGone    = fmt.Errorf("%w: Modal has ended it: %w", primitives.ErrUnavailable, os.ErrProcessDone)
)

// timeoutCode is the exit code that the SDK gives a sandbox that reached a timeout.
const timeoutCode = 124

// statusOf converts a result. Nil means that the sandbox is running.
func statusOf(r *pb.GenericResult) guest.Status {
	switch r.GetStatus() {
	case pb.GenericResult_GENERIC_STATUS_UNSPECIFIED:
		return guest.Status{State: primitives.State{Status: primitives.StatusRunning}}
	case pb.GenericResult_GENERIC_STATUS_TERMINATED:
		return guest.Status{State: primitives.State{Status: primitives.StatusTerminated}}
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		return exited(timeoutCode, errTimeout)
	case pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT:
		return exited(timeoutCode, errIdle)
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE:
		return exited(int(r.GetExitcode()), errGone)
	}
	return guest.Status{State: primitives.State{Status: primitives.StatusLost}, Cause: fmt.Errorf("%w: %s", errGone, r.GetException())}
}

func exited(code int, cause error) guest.Status {
	exit := primitives.ExitStatus{Code: code, Reason: primitives.ReasonExited}
	return guest.Status{State: primitives.State{Status: primitives.StatusExited, Exit: exit}, Cause: cause}
}
