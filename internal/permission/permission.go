// Package permission decides about the permission requests of a query and how long they wait for
// an answer. Package environment starts the time when it gets a request (internal/query, admit).
package permission

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// DefaultTimeout is the default of Policy.Timeout.
const DefaultTimeout = time.Minute

// Policy decides about requests.
type Policy struct {
	// On returns a decision. The zero decision leaves the request unanswered. On must not be
	// nil.
	On func(ctx context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision
	// Timeout is how long a request waits. Zero means DefaultTimeout, a negative value no
	// limit.
	Timeout time.Duration
}

var errUnanswered = errors.New("the permission request was not answered in time")

func (p Policy) timeout() time.Duration {
	if p.Timeout == 0 {
		return DefaultTimeout
	}
	return p.Timeout
}

// Waiting returns the context in which a request waits for its answer. The caller must cancel
// it when the request is answered or withdrawn.
func (p Policy) Waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.Timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, p.timeout(), errUnanswered)
}

// Decide calls On. If req does not offer the decision, Decide returns a rejection, because the
// agent would keep waiting, and invalid says what is wrong. ok is false if On leaves the
// request unanswered, or if ctx, the context of Waiting, is done.
func (p Policy) Decide(ctx context.Context, req runnerscripts.PermissionRequest) (_ runnerscripts.PermissionDecision, ok bool, invalid error) {
	if ctx.Err() != nil {
		return runnerscripts.PermissionDecision{}, false, nil
	}
	d := p.On(ctx, req)
	if ctx.Err() != nil || d.OptionID == "" && d.Kind == "" {
		return d, false, nil
	}
	if _, err := Check(req, d); err != nil {
		return req.Reject("This program's decision was invalid."), true, err
	}
	return d, true, nil
}

// Expire waits until ctx, the context of Waiting, is done. If that is because of the timeout,
// it returns a rejection and true.
func (p Policy) Expire(ctx context.Context, req runnerscripts.PermissionRequest) (_ runnerscripts.PermissionDecision, ok bool) {
	<-ctx.Done()
	return req.Reject(fmt.Sprintf("It was not answered within %v.", p.timeout())), errors.Is(context.Cause(ctx), errUnanswered)
}

// UnsetWarning is the log message for a request that [Unset] answers.
const UnsetWarning = "a permission request was rejected, because OnPermission is not set; set it in environment.Config, for example to environment.AllowAll"

// Unset returns the rejection of a request when there is no OnPermission.
func Unset(req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	return req.Reject("Nothing answers permission requests here.")
}

// Check returns the kind of a decision. A decision that req does not offer, or that is
// inconsistent, is fs.ErrInvalid.
func Check(req runnerscripts.PermissionRequest, d runnerscripts.PermissionDecision) (runnerscripts.PermissionKind, error) {
	kind := d.Kind
	if d.OptionID != "" {
		offered := kinds(req, d.OptionID)
		switch {
		case len(offered) == 0:
			return "", fmt.Errorf("%w: request %q has no option %q", fs.ErrInvalid, req.ID, d.OptionID)
		case kind == "" && len(offered) > 1:
			return "", fmt.Errorf("%w: request %q has several options %q; say the kind, too", fs.ErrInvalid, req.ID, d.OptionID)
		case kind == "":
			kind = offered[0]
		case !slices.Contains(offered, kind):
			return "", fmt.Errorf("%w: option %q is %s, not %s", fs.ErrInvalid, d.OptionID, offered[0], kind)
		}
	}
	switch kind {
	case runnerscripts.AllowOnce, runnerscripts.AllowAlways, runnerscripts.RejectOnce, runnerscripts.RejectAlways:
	case "":
		return "", fmt.Errorf("%w: the decision has neither option_id nor kind", fs.ErrInvalid)
	default:
		return "", fmt.Errorf("%w: %q is no kind of decision; use %s, %s, %s or %s", fs.ErrInvalid, kind,
			runnerscripts.AllowOnce, runnerscripts.AllowAlways, runnerscripts.RejectOnce, runnerscripts.RejectAlways)
	}
	if d.OptionID == "" && kind.Allows() && !offers(req, kind) {
		return "", fmt.Errorf("%w: request %q does not offer %s", fs.ErrInvalid, req.ID, kind)
	}
	if len(d.UpdatedInput) > 0 && !kind.Allows() {
		return "", fmt.Errorf("%w: updated_input goes with an allowing decision only", fs.ErrInvalid)
	}
	return kind, nil
}

// kinds returns the distinct kinds of the options with an ID. The agent chooses the IDs, and
// may use the same ID twice.
func kinds(req runnerscripts.PermissionRequest, id string) []runnerscripts.PermissionKind {
	var all []runnerscripts.PermissionKind
	for _, o := range req.Options {
		if o.OptionID == id && !slices.Contains(all, o.Kind) {
			all = append(all, o.Kind)
		}
	}
	return all
}

func offers(req runnerscripts.PermissionRequest, kind runnerscripts.PermissionKind) bool {
	return len(req.Options) == 0 || slices.ContainsFunc(req.Options, func(o runnerscripts.PermissionOption) bool { return o.Kind == kind })
}
