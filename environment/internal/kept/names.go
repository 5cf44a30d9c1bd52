package kept

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/internal/statedir"
)

// namePattern matches the name of a sandbox.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// CheckName returns configfile.ErrInvalid for a text that no sandbox can have as its name.
func CheckName(name string) error {
	if name != "" && !namePattern.MatchString(name) {
		return fmt.Errorf("%w: name: %q has other characters than letters, digits, '_', '.' and '-', does not begin with a letter or digit, "+
			"or is longer than 63", configfile.ErrInvalid, name)
	}
	return nil
}

// Lives reports whether a sandbox exists.
type Lives func(ctx context.Context, typ, id string) (bool, error)

// SetName gives the sandbox a name, unless another one has it. It holds the lock of names, which all programs of this user
// share.
func (l *Log) SetName(ctx context.Context, name string, lives Lives) error {
	locks, err := statedir.Open("locks")
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }() // nothing was written
	unlock, err := flock.Lock(ctx, filepath.Join(locks.Name(), "names"), nil)
	if err != nil {
		return err
	}
	defer unlock()
	if err := CheckNameFree(ctx, name, lives); err != nil {
		return err
	}
	return l.Change(func(r *Record) { r.Name = name })
}

// CheckNameFree returns configfile.ErrInvalid if a live sandbox has the name.
func CheckNameFree(ctx context.Context, name string, lives Lives) (err error) {
	s, err := Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	found, err := s.find(func(r *Record) bool { return r.Name == name })
	if err != nil {
		return err
	}
	for _, r := range found {
		if alive, err := lives(ctx, r.Type, r.ID); err == nil && !alive {
			// It is gone, or on an engine that this program does not ask: then it loses its name alone.
			_ = s.change(r.Type, r.ID, func(r *Record) { r.Name = "" })
			continue
		}
		return fmt.Errorf("%w: name: the sandbox %s has the name %q; end it, or choose another name", configfile.ErrInvalid, r.ID, name)
	}
	return nil
}

// IDOf returns the ID of the sandbox with a name; empty if this machine knows none of this type.
func IDOf(typ, name string) string {
	if name == "" {
		return ""
	}
	s, err := Open()
	if err != nil {
		return ""
	}
	defer func() { _ = s.Close() }() // it was only read
	found, _ := s.find(func(r *Record) bool { return r.Type == typ && r.Name == name })
	for _, r := range found {
		return r.ID
	}
	return ""
}
