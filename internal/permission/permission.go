// Package permission decides about the permission requests of a query, the same in
// packages environment and session.
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

// DefaultTimeout is how long a request waits if a [Policy] does not say.
const DefaultTimeout = time.Minute

// Policy decides about requests.
type Policy struct {
	// On returns a decision; the zero decision leaves it to others. It must not be nil.
	On func(ctx context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision
	// Timeout is how long a request waits: DefaultTimeout if it is zero, and for ever
	// if it is negative.
	Timeout time.Duration
}

var errUnanswered = errors.New("the permission request was not answered in time")

func (p Policy) timeout() time.Duration {
	if p.Timeout == 0 {
		return DefaultTimeout
	}
	return p.Timeout
}

// Waiting returns the context in which a request waits for its answer. The caller
// cancels it when the request is answered or withdrawn.
func (p Policy) Waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.Timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, p.timeout(), errUnanswered)
}

// Decide calls On. A decision that req does not offer becomes a rejection, because the
// agent would go on waiting, and invalid says what is wrong with it. It is not ok if On
// leaves the decision to others, or ctx, which is of Waiting, is done.
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

// Expire waits until ctx, which is of Waiting, is done. It is ok if the time has run
// out, and the decision is then a rejection.
func (p Policy) Expire(ctx context.Context, req runnerscripts.PermissionRequest) (_ runnerscripts.PermissionDecision, ok bool) {
	<-ctx.Done()
	return req.Reject(fmt.Sprintf("It was not answered within %v.", p.timeout())), errors.Is(context.Cause(ctx), errUnanswered)
}

// UnsetWarning is what a log event says of a request that [Unset] answers.
const UnsetWarning = "a permission request was rejected, because OnPermission is not set; set it in environment.Config, for example to environment.AllowAll"

// Unset is the decision where nothing answers requests.
func Unset(req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	return req.Reject("Nothing answers permission requests here.")
}

// Check returns the kind of a decision. One that req does not offer, or that makes no
// sense, is fs.ErrInvalid.
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

// kinds returns the kinds of the options with an ID, each once. The IDs are the agent's,
// which may give the same one twice.
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
