package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// GC ends and removes the sandboxes below p.Root whose owners have died, and the remains of
// sandboxes whose owners died while they made or removed them. It spares a sandbox that a program
// is attached to, whose owner lives, that was made with Config.Keep, or whose grace period is not
// over, see [Config].Grace. If no collector process counts the grace period, it begins when GC
// first finds the sandbox.
//
// If something cannot be removed GC continues. It returns what it removed together with the error.
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

// clean removes one session folder if it is garbage; otherwise Garbage.Why is empty. For an orphan
// in its grace period, wait is the rest of that period.
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
	if err != nil || st.owner() != owner.Dead || st.Keep {
		return primitives.Garbage{}, 0, nil // a state that cannot be read may not be ours
	}
	return cleanOrphan(ctx, &st, opts)
}

// cleanOrphan ends a sandbox whose owner has died, unless a program is attached to it or its grace
// period is not over. A program that attaches meanwhile waits for the lock, then finds that the
// sandbox was terminated.
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
		return found, 0, errors.Join(st.discard(), life.Close())
	}
	who, err := sandboxUser(st.User)
	if err != nil {
		who = identity{} // ending processes does not need their user
	}
	s, err := openWith(st, who, false, life)
	if err != nil {
		return found, 0, err
	}
	_, err = s.Terminate(ctx)
	return found, 0, errors.Join(err, s.Close())
}

// neverAlone is the modification time of a life file after a program has attached, until the
// sandbox is found with a dead owner and no attached program.
var neverAlone = time.Unix(0, 0)

// aloneSince records since when neither the owner lives nor a program is attached. It uses the
// modification time of the life file, which can be set on a full disk.
func aloneSince(life *os.File, since time.Time) error {
	tv := unix.NsecToTimeval(since.UnixNano())
	return unix.Futimes(int(life.Fd()), []unix.Timeval{tv, tv})
}

// remainingGrace returns how long an orphan without an attached program lives on. The first call
// without dryRun starts its grace period. The caller holds the lock exclusively.
func (st *state) remainingGrace(life *os.File, info fs.FileInfo, dryRun bool) (time.Duration, error) {
	if since := info.ModTime(); since.After(neverAlone) {
		return min(st.grace()-time.Since(since), st.grace()), nil
	}
	if dryRun {
		return st.grace(), nil
	}
	return st.grace(), aloneSince(life, time.Now())
}

// cleanHalf removes a sandbox that was never complete. A folder that is not an unfinished copy is
// removed only if it holds nothing but what New makes.
func cleanHalf(ctx context.Context, session string, st state, opts primitives.GCOptions) (primitives.Garbage, error) {
	if st.ID == "" {
		// The program that makes the sandbox holds the lock until the state names its owner.
		unlock, err := lockRootAlone(ctx, filepath.Dir(session))
		if unlock == nil {
			return primitives.Garbage{}, err
		}
		defer unlock()
		if st.load() == nil {
			return primitives.Garbage{}, nil
		}
	} else if st.owner() != owner.Dead {
		return primitives.Garbage{}, nil
	}
	info, err := os.Lstat(session)
	if errors.Is(err, fs.ErrNotExist) {
		return primitives.Garbage{}, nil
	}
	if err != nil {
		return primitives.Garbage{}, err
	}
	if !st.Copying && (!onlyNew(session) || !st.workspaceEmpty()) {
		return primitives.Garbage{}, nil
	}
	found := primitives.Garbage{Kind: "folder", ID: filepath.Base(session), Why: "its program died while it was made", Created: info.ModTime().UTC()}
	if opts.DryRun {
		return found, nil
	}
	if parent, err := cgroup.Parent(); err == nil {
		_ = cgroup.Remove(filepath.Join(parent, groupPrefix+found.ID)) // the group may not exist
	}
	return found, errors.Join(st.removeWorkspace(), files.RemoveTree(session))
}

// onlyNew reports whether a folder holds nothing but what New makes.
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

// discard removes the workspace and the session folder, which names the workspace until then. It
// renames that folder first, so that no program takes the rest for a sandbox if this program dies
// meanwhile.
func (st *state) discard() error {
	if err := st.removeWorkspace(); err != nil {
		return err
	}
	gone := filepath.Join(filepath.Dir(st.Session), removedPrefix+filepath.Base(st.Session))
	if err := os.Rename(st.Session, gone); err != nil {
		return files.RemoveTree(st.Session)
	}
	return files.RemoveTree(gone)
}

// removedPrefix is the prefix of the name of a folder that is being removed.
const removedPrefix = ".removed-"

// isID reports whether newID could have returned this name.
func isID(name string) bool {
	return len(name) == len(newID()) && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// owner says whether the program that made the sandbox lives.
func (st *state) owner() owner.Liveness {
	if st.ID == "" {
		return owner.Unknown
	}
	return owner.Identity{
		Host: st.Host, PID: strconv.Itoa(st.Owner.PID), PIDs: st.PIDs, Started: strconv.FormatUint(st.Owner.Start, 10), Boot: st.Boot,
	}.Liveness()
}

// lockTurn is the interval between attempts to take a lock that is held.
const lockTurn = 5 * time.Millisecond

// flockShared takes a shared lock. It waits only until ctx is done, because commands of the sandbox
// could hold the lock. It ignores a file system without locks: GC cannot lock there either.
func flockShared(ctx context.Context, f *os.File) error {
	if err := awaitLock(ctx, f, unix.LOCK_SH); errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("wait for the lock of %s: %w", f.Name(), ctx.Err())
	}
	return nil
}

// awaitLock locks a file. If ctx is done first the error is EWOULDBLOCK.
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

// lockRootAlone locks root exclusively. It returns nil if other programs hold the lock for a
// second.
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

// flock locks an open file. It retries after EINTR.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
