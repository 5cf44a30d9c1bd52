package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// GC ends and removes the sandboxes below p.Root whose owners have died, and what is
// left of those that were being made or removed then. It takes none that a program is
// attached to, whose owner lives, or that was made with Config.Keep, and none within its
// grace, see [Config].Grace: if no collector process counts that, it begins when GC
// first finds the sandbox.
//
// It goes on when something cannot be removed, and returns what was removed
// together with the error.
func (p Provider) GC(ctx context.Context, opts primitives.GCOptions) ([]primitives.Garbage, error) {
	var removed []primitives.Garbage
	var errs []error
	for _, root := range rootFolders(p.Root, os.Geteuid()) {
		entries, err := entriesOf(root, p.Root == "")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return removed, wrap("gc", root, errors.Join(append(errs, err)...))
			}
			if !e.IsDir() {
				continue
			}
			found, _, err := clean(ctx, filepath.Join(root, e.Name()), opts)
			if err != nil {
				errs = append(errs, err)
			} else if found.Why != "" {
				removed = append(removed, found)
			}
		}
	}
	return removed, wrap("gc", p.Root, errors.Join(errs...))
}

// clean removes one session folder if it is garbage; else Garbage.Why is empty. For an
// orphan whose grace is not over, wait is the rest of it.
func clean(ctx context.Context, session string, opts primitives.GCOptions) (found primitives.Garbage, wait time.Duration, err error) {
	name := filepath.Base(session)
	if rest, ok := strings.CutPrefix(name, removedPrefix); ok && isID(rest) {
		found := primitives.Garbage{Kind: "folder", ID: rest, Why: "its program died while it was removed"}
		if opts.DryRun {
			return found, 0, nil
		}
		return found, 0, files.RemoveTree(session)
	}
	if !isID(name) {
		return primitives.Garbage{}, 0, nil // not a sandbox's folder
	}
	st := state{Session: session}
	err = st.load()
	if !st.complete() {
		found, err = cleanHalf(ctx, session, st, opts)
		return found, 0, err
	}
	if err != nil || st.owner() != ownerDead || st.Keep {
		return primitives.Garbage{}, 0, nil // what cannot be read is not ours
	}
	return cleanOrphan(ctx, &st, opts)
}

// cleanOrphan ends a sandbox of a dead owner unless a program is attached to it, or its
// grace is not over. A program that wants to attach meanwhile waits for the lock, and finds
// that it was terminated.
func cleanOrphan(ctx context.Context, st *state, opts primitives.GCOptions) (found primitives.Garbage, wait time.Duration, err error) {
	life, err := openRegular(st.file(lifeFile), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return primitives.Garbage{}, 0, nil
	}
	if err != nil {
		return primitives.Garbage{}, 0, err
	}
	// Another program that checks for clients holds the lock for a moment.
	locking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if awaitLock(locking, life, unix.LOCK_EX) != nil {
		return primitives.Garbage{}, 0, life.Close()
	}
	info, err := life.Stat()
	ended := err == nil && isEnded(info)
	if err != nil || ended && st.LeaveFiles {
		return primitives.Garbage{}, 0, errors.Join(err, life.Close())
	}
	if !opts.NoGrace && !ended {
		if wait, err = st.remainingGrace(life, info, opts.DryRun); err != nil || wait > 0 {
			return primitives.Garbage{}, wait, errors.Join(err, life.Close())
		}
	}
	found = primitives.Garbage{Kind: "folder", ID: st.ID, Why: "its program died", Created: st.Created}
	switch {
	case opts.DryRun:
		return found, 0, life.Close()
	case ended:
		return found, 0, errors.Join(discard(st.Session), life.Close())
	}
	who, err := sandboxUser(st.User)
	if err != nil {
		who = identity{} // processes are ended without knowing their user
	}
	s, err := openWith(st, who, false, life)
	if err != nil {
		return found, 0, err
	}
	_, err = s.Terminate(ctx)
	return found, 0, errors.Join(err, s.Close())
}

// neverAlone is the time of a life file since a program attached, until the sandbox is
// found without its owner and such a program.
var neverAlone = time.Unix(0, 0)

// aloneSince writes down in the time of the life file, for which a full disk has room, too,
// since when neither the owner lives nor a program is attached.
func aloneSince(life *os.File, since time.Time) error {
	tv := unix.NsecToTimeval(since.UnixNano())
	return unix.Futimes(int(life.Fd()), []unix.Timeval{tv, tv})
}

// remainingGrace returns how long an orphan that no program is attached to lives on. Its
// grace begins when this is first asked. The caller holds the lock alone.
func (st *state) remainingGrace(life *os.File, info fs.FileInfo, dryRun bool) (time.Duration, error) {
	if since := info.ModTime(); since.After(neverAlone) {
		return min(st.grace()-time.Since(since), st.grace()), nil
	}
	if dryRun {
		return st.grace(), nil
	}
	return st.grace(), aloneSince(life, time.Now())
}

// cleanHalf removes a sandbox that never was complete. There is nothing in it but
// what New makes, or a copy of another one: what has more in it stays.
func cleanHalf(ctx context.Context, session string, st state, opts primitives.GCOptions) (primitives.Garbage, error) {
	if st.ID == "" {
		// The program that makes it holds the lock until its name is written down.
		unlock, err := lockRootAlone(ctx, filepath.Dir(session))
		if unlock == nil {
			return primitives.Garbage{}, err
		}
		defer unlock()
		if st.load() == nil {
			return primitives.Garbage{}, nil
		}
	} else if st.owner() != ownerDead {
		return primitives.Garbage{}, nil
	}
	info, err := os.Lstat(session)
	if errors.Is(err, fs.ErrNotExist) {
		return primitives.Garbage{}, nil
	}
	if err != nil {
		return primitives.Garbage{}, err
	}
	if !st.Copying && !onlyNew(session) {
		return primitives.Garbage{}, nil
	}
	found := primitives.Garbage{Kind: "folder", ID: filepath.Base(session), Why: "its program died while it was made", Created: info.ModTime().UTC()}
	if opts.DryRun {
		return found, nil
	}
	if parent, err := cgroup.Parent(); err == nil {
		_ = cgroup.Remove(filepath.Join(parent, groupPrefix+found.ID)) // it may not have come to that
	}
	return found, files.RemoveTree(session)
}

// onlyNew reports whether there is nothing in a folder but what New makes.
func onlyNew(session string) bool {
	p := primitives.PathsIn(session)
	known := append(p.All(), filepath.Join(p.App, stateFile))
	err := filepath.WalkDir(session, func(name string, _ fs.DirEntry, err error) error {
		if err == nil && !slices.Contains(known, name) {
			err = fs.ErrExist
		}
		return err
	})
	return err == nil
}

// discard removes a session folder. It renames it first, so that no program takes the
// rest for a sandbox if this program dies meanwhile.
func discard(session string) error {
	gone := filepath.Join(filepath.Dir(session), removedPrefix+filepath.Base(session))
	if err := os.Rename(session, gone); err != nil {
		return files.RemoveTree(session)
	}
	return files.RemoveTree(gone)
}

// removedPrefix begins the name of a folder that is being removed.
const removedPrefix = ".removed-"

// isID reports whether newID could have returned this name.
func isID(name string) bool {
	return len(name) == len(newID()) && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// ownerFate is what became of the program that made a sandbox.
type ownerFate int

const (
	ownerUnknown ownerFate = iota // it cannot be seen from here
	ownerAlive
	ownerDead
)

func (st *state) owner() ownerFate {
	switch {
	case st.ID == "" || st.Boot == "":
		return ownerUnknown
	case st.Boot != proctree.BootID():
		if owner.EndedWithTheMachine(st.Host, st.Boot, proctree.BootID()) {
			return ownerDead
		}
		return ownerUnknown
	case st.PIDs != pidNamespace():
		return ownerUnknown
	case proctree.Alive(st.Owner):
		return ownerAlive
	}
	return ownerDead
}

// pidNamespace names the set of processes that this program sees.
func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid") // empty where there are none
	return name
}

// lockTurn is the interval between attempts to take a lock that is held.
const lockTurn = 5 * time.Millisecond

// flockShared waits for a lock that commands of the sandbox could keep, until ctx is done.
// Where there are no locks GC gets none either.
func flockShared(ctx context.Context, f *os.File) error {
	if err := awaitLock(ctx, f, unix.LOCK_SH); errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("wait for the lock of %s: %w", f.Name(), ctx.Err())
	}
	return nil
}

// awaitLock locks a file. When ctx is done before, the error is EWOULDBLOCK.
func awaitLock(ctx context.Context, f *os.File, how int) error {
	again := time.NewTicker(lockTurn)
	defer again.Stop()
	for {
		err := flock(f, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-again.C:
		}
	}
}

// lockRoot keeps GC from removing a folder that this program makes below root before the
// folder names its owner. Several programs may hold the lock. On a file system without
// locks it does nothing.
func lockRoot(root string) (unlock func(), err error) {
	f, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	_ = flock(f, unix.LOCK_SH)
	return func() { _ = f.Close() }, nil
}

// lockRootAlone returns nil if others hold the lock and do not let go of it soon.
func lockRootAlone(ctx context.Context, root string) (unlock func(), err error) {
	f, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if awaitLock(ctx, f, unix.LOCK_EX) != nil {
		return nil, f.Close()
	}
	return func() { _ = f.Close() }, nil
}

// flock locks a file for this handle.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
