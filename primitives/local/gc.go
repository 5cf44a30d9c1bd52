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

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// GCOptions says what [GC] does. The zero value is what is always safe to do.
type GCOptions struct {
	// DryRun only tells what would be removed.
	DryRun bool
	// NoGrace also removes sandboxes in which a durable command still runs.
	NoGrace bool
}

// Garbage is a sandbox, or what is left of one, that [GC] removed or would remove.
type Garbage struct {
	ID      string
	Why     string // for people
	Created time.Time
}

// GC ends and removes the sandboxes below cfg.Root whose programs have died, and
// what is left of those that were being made or removed then, without waiting for
// their grace. It takes none that a program is attached to, whose maker lives, that
// was made with Config.Stay, or in which a durable command runs. Of cfg only Root
// counts.
//
// It goes on when something cannot be removed, and returns what was removed
// together with the error.
func GC(ctx context.Context, cfg Config, opts GCOptions) ([]Garbage, error) {
	var removed []Garbage
	var errs []error
	for _, root := range rootFolders(cfg, os.Geteuid()) {
		entries, err := entriesOf(root, cfg.Root == "")
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
			found, err := clean(ctx, filepath.Join(root, e.Name()), opts)
			if err != nil {
				errs = append(errs, err)
			} else if found.Why != "" {
				removed = append(removed, found)
			}
		}
	}
	return removed, wrap("gc", cfg.Root, errors.Join(errs...))
}

// clean removes one session folder if it is garbage; else Garbage.Why is empty.
func clean(ctx context.Context, session string, opts GCOptions) (Garbage, error) {
	name := filepath.Base(session)
	if rest, ok := strings.CutPrefix(name, removedPrefix); ok && isID(rest) {
		found := Garbage{ID: rest, Why: "its program died while it was removed"}
		if opts.DryRun {
			return found, nil
		}
		return found, files.RemoveTree(session)
	}
	if !isID(name) {
		return Garbage{}, nil // a folder of somebody else
	}
	st := state{Session: session}
	err := st.load()
	if !st.complete() {
		return cleanHalf(ctx, session, st, opts)
	}
	if err != nil || st.owner() != ownerDead || st.Stay || !opts.NoGrace && st.busy() {
		return Garbage{}, nil //nolint:nilerr // what cannot be read is not ours
	}
	return cleanSandbox(ctx, &st, opts)
}

// cleanSandbox ends a sandbox unless somebody is attached to it. Whoever wants to
// attach meanwhile waits for the lock, and finds that it was terminated.
func cleanSandbox(ctx context.Context, st *state, opts GCOptions) (Garbage, error) {
	life, err := openRegular(st.file(lifeFile), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return Garbage{}, nil
	}
	if err != nil {
		return Garbage{}, err
	}
	info, err := life.Stat()
	ended := err == nil && isEnded(info)
	if err != nil || ended && st.Keep || flock(life, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return Garbage{}, errors.Join(err, life.Close())
	}
	found := Garbage{ID: st.ID, Why: "its program died", Created: st.Created}
	switch {
	case opts.DryRun:
		return found, life.Close()
	case ended:
		return found, errors.Join(discard(st.Session), life.Close())
	}
	who, err := sandboxUser(st.User)
	if err != nil {
		who = identity{} // processes are ended without knowing their user
	}
	s, err := openWith(st, who, false, life)
	if err != nil {
		return found, err
	}
	_, err = s.Terminate(ctx)
	return found, errors.Join(err, s.Close())
}

// cleanHalf removes a sandbox that never was complete. There is nothing in it but
// what New makes, or a copy of another one: what has more in it stays.
func cleanHalf(ctx context.Context, session string, st state, opts GCOptions) (Garbage, error) {
	if st.ID == "" {
		// The program that makes it holds the lock until its name is written down.
		unlock, err := lockRootAlone(ctx, filepath.Dir(session))
		if unlock == nil {
			return Garbage{}, err
		}
		defer unlock()
		if st.load() == nil {
			return Garbage{}, nil
		}
	} else if st.owner() != ownerDead {
		return Garbage{}, nil
	}
	info, err := os.Lstat(session)
	if errors.Is(err, fs.ErrNotExist) {
		return Garbage{}, nil
	}
	if err != nil {
		return Garbage{}, err
	}
	if !st.Copying && !onlyNew(session) {
		return Garbage{}, nil
	}
	found := Garbage{ID: filepath.Base(session), Why: "its program died while it was made", Created: info.ModTime().UTC()}
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

// discard removes a session folder so that nobody takes the rest for a sandbox if
// this program dies meanwhile.
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
		// Folders can be shared among machines.
		if host, err := os.Hostname(); err != nil || host != st.Host {
			return ownerUnknown
		}
		return ownerDead
	case st.PIDs != pidNamespace():
		return ownerUnknown
	case proctree.Alive(st.Owner):
		return ownerAlive
	}
	return ownerDead
}

// busy reports whether a durable command runs.
func (st *state) busy() bool {
	started, _ := filepath.Glob(filepath.Join(st.paths().App, "exec", "*", startedFile))
	return slices.ContainsFunc(started, func(file string) bool {
		var d durableStart
		return readJSON(file, &d) == nil && d.Boot == proctree.BootID() && proctree.Alive(d.Supervisor)
	})
}

// pidNamespace names the set of processes that this program sees.
func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid") // empty where there are none
	return name
}

// lockTurn is how often a lock is tried that somebody else has.
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

// lockRoot keeps others from taking what this program makes below root for garbage, as
// long as nothing in it says whose it is. Several programs may hold the lock. Where there
// are no locks, nobody takes it.
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
