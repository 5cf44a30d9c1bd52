package files

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// fail adds the operation and the target to an error, and translates it into a sentinel of the
// contract.
func (f *FS) fail(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: f.cfg.Backend, Target: target, Err: Classify(err)}
}

// Classify turns an error of the operating system into a sentinel of the contract. Only Classify
// knows the meaning of each errno. An errno that Go itself maps to the right io/fs sentinel stays
// unchanged.
func Classify(err error) error {
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return err
	}
	switch errno {
	case unix.EISDIR:
		return primitives.ErrIsDirectory
	case unix.ENOTDIR:
		return primitives.ErrNotDirectory
	case unix.ENOTEMPTY:
		return primitives.ErrNotEmpty
	case unix.ENXIO, unix.ENODEV, unix.EOPNOTSUPP:
		return primitives.ErrNotRegular
	case unix.ENOSPC, unix.EDQUOT:
		return NoSpace(err)
	case unix.EROFS, unix.ETXTBSY, unix.EBUSY:
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case unix.EINVAL, unix.ELOOP, unix.ENAMETOOLONG:
		return fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	return err
}

// NoSpace is Classify for the errors of a full disk only.
func NoSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", primitives.ErrNoSpace, err)
	}
	return err
}

// invalid returns the error for a request that no machine could serve.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{fs.ErrInvalid}, args...)...)
}
