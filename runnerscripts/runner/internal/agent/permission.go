package agent

import (
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Choose finds the option of a permission request that a decision means.
func Choose(options []runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) (runnerscripts.PermissionOption, error) {
	i := slices.IndexFunc(options, func(o runnerscripts.PermissionOption) bool {
		if d.OptionID != "" {
			return o.OptionID == d.OptionID && (d.Kind == "" || d.Kind == o.Kind)
		}
		return o.Kind == d.Kind
	})
	if i < 0 {
		return runnerscripts.PermissionOption{}, Invalid(
			"choose one of the request's options: %v has no option %q of kind %q", options, d.OptionID, d.Kind)
	}
	o := options[i]
	if len(d.UpdatedInput) > 0 && !o.Kind.Allows() {
		return o, Invalid("leave updated_input out of a rejection: the tool does not run")
	}
	return o, nil
}

// NotWaiting is the error of an answer to a permission request that does not wait
// for one.
func NotWaiting(id string) error {
	return Invalid("answer a permission request that waits: there is none with the id %q (any more)", id)
}
