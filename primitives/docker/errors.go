package docker

import (
	"errors"
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives"
)

// wrap says where an error came from.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}

// isMissingOrBusy reports whether the engine does not have what a call is about, or not in
// the state that the call needs.
func isMissingOrBusy(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist)
}
