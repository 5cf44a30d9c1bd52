package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

// identity is the user that a command runs as.
type identity struct {
	name string              // empty: the sandbox's own
	cred *syscall.Credential // nil: this program's user
}

// identify resolves Command.User.
func (s *Sandbox) identify(who string) (identity, error) {
	if who == "" {
		return identity{cred: s.cred}, nil
	}
	id, err := resolveUser(who)
	if err != nil && !s.caps.Users {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return id, err
}

// resolveUser resolves a user name or number, either with an optional ":group".
func resolveUser(who string) (identity, error) {
	name, group, hasGroup := strings.Cut(who, ":")
	u, err := lookupUser(name)
	if err != nil {
		return identity{}, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return identity{}, fmt.Errorf("%w: %q has no numeric id", primitives.ErrUnknownUser, name)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return identity{}, fmt.Errorf("%w: %q has no numeric group", primitives.ErrUnknownUser, name)
	}
	if hasGroup {
		if gid, err = lookupGroup(group); err != nil {
			return identity{}, err
		}
	}
	id := identity{name: u.Username, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if !maySwitchUser() {
		if int(uid) != os.Geteuid() || (hasGroup && int(gid) != os.Getegid()) {
			return identity{}, fmt.Errorf("%w: %s run commands as %q", fs.ErrPermission, whoMaySwitch(), who)
		}
		id.cred = nil
		return id, nil
	}
	if ids, err := u.GroupIds(); err == nil && !hasGroup {
		for _, g := range ids {
			if n, err := strconv.ParseUint(g, 10, 32); err == nil {
				id.cred.Groups = append(id.cred.Groups, uint32(n))
			}
		}
	}
	return id, nil
}

// whoMaySwitch returns the start of the error message where maySwitchUser is false.
func whoMaySwitch() string {
	if os.Geteuid() == 0 {
		return "give the container the capabilities SETUID, SETGID and KILL (cap_add), or set its user: this root cannot"
	}
	return "only root can"
}

// lookupUser finds a user by name or number. A number may lack an entry; its group then has the
// same number.
func lookupUser(name string) (*user.User, error) {
	u, err := user.Lookup(name)
	if err == nil {
		return u, nil
	}
	if _, nerr := strconv.ParseUint(name, 10, 32); nerr == nil {
		if u, err := user.LookupId(name); err == nil {
			return u, nil
		}
		return &user.User{Uid: name, Gid: name, Username: name}, nil
	}
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q", primitives.ErrUnknownUser, name)
	}
	return nil, fmt.Errorf("%w: %q: %w", primitives.ErrUnknownUser, name, err)
}

func lookupGroup(name string) (uint64, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return n, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("%w: group %q: %w", primitives.ErrUnknownUser, name, err)
	}
	return strconv.ParseUint(g.Gid, 10, 32)
}
