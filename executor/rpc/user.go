package rpc

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// ErrUser means that an executor cannot run as the user that it should: nothing maps the user to one
// of the system, the system has no such user, or this program may not start programs as another one.
// There is no other user that it runs as instead.
var ErrUser = errors.New("the executor cannot run as this user")

// account is a user of the system.
type account struct {
	name     string // empty means this program's own
	uid, gid int
}

// ownAccount returns this program's user.
func ownAccount() account { return account{uid: os.Geteuid(), gid: os.Getegid()} }

// findAccount returns the user of the system that a user is mapped to, for a program of self. An empty
// user is self.
func findAccount(users map[string]string, name string, self account) (account, error) {
	if name == "" {
		return self, nil
	}
	mapped := users[name]
	if mapped == "" {
		return account{}, fmt.Errorf("%w: %q is mapped to no user of the system; map it in PoolConfig.Users", ErrUser, name)
	}
	u, err := user.Lookup(mapped)
	if err != nil {
		return account{}, fmt.Errorf("%w: %q is mapped to %q: %w", ErrUser, name, mapped, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	switch {
	case err != nil || gerr != nil:
		return account{}, fmt.Errorf("%w: %q is mapped to %q, which has no number", ErrUser, name, mapped)
	case uid == 0:
		return account{}, fmt.Errorf("%w: %q is mapped to %q, which is root; map it to a user without rights", ErrUser, name, mapped)
	case uid == self.uid:
		return self, nil
	case self.uid != 0:
		return account{}, fmt.Errorf("%w: only root can start a program as %q; run this program as root, or as %[2]q", ErrUser, mapped)
	}
	return account{name: u.Username, uid: uid, gid: gid}, nil
}
