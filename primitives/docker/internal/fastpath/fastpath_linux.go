package fastpath

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// base returns the folder of this user that holds the folders of containers. No other user may
// enter it. It is on the disk, because a stopped container starts again, after the machine has, only
// if all that it mounts is still there.
func base() string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "agentenv", "link")
	}
	return filepath.Join(os.TempDir(), "agentenv-"+strconv.Itoa(os.Geteuid()), "link")
}

// Folder returns the folder of a container of the engine at an address, or "" for an engine of
// another machine.
func Folder(engine string, name string) string {
	if !strings.HasPrefix(engine, "unix://") {
		return ""
	}
	return filepath.Join(base(), name+suffix(engine))
}

// suffix distinguishes the containers of different engines.
func suffix(engine string) string {
	sum := sha256.Sum256([]byte(engine))
	return "-" + hex.EncodeToString(sum[:4])
}

// makeFolder makes the folder for a new container, and reports whether the folder is new. It
// returns "" if there can be none.
func makeFolder(engine string, name string) (folder string, fresh bool) {
	folder = Folder(engine, name)
	if folder == "" || os.MkdirAll(base(), 0o700) != nil {
		return "", false
	}
	err := os.Mkdir(folder, 0o755)
	if err == nil {
		err = os.Chmod(folder, 0o755) // whatever the umask says
		fresh = true
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", false
	}
	return folder, fresh
}

// openFolder opens the folder of a container if it is as makeFolder made it: not a link, and
// writable for this user only.
func openFolder(folder string) (*os.File, error) {
	parent, err := openOwn(unix.AT_FDCWD, filepath.Dir(folder), 0o700)
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }()
	return openOwn(int(parent.Fd()), filepath.Base(folder), 0o755)
}

func openOwn(at int, name string, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o7777 != mode {
		return nil, errors.Join(fmt.Errorf("%w: %s is not this user's alone", fs.ErrPermission, name), f.Close())
	}
	return f, nil
}

// Listen opens a socket in the folder of a container. at is the path of the folder in the
// container. The socket is made through the open folder: so the path may be long, and cannot come
// to mean another folder.
func Listen(folder, at string) (Listener, error) {
	dir, err := openFolder(folder)
	if err != nil {
		return Listener{}, err
	}
	name := rand.Text()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return Listener{}, errors.Join(err, dir.Close())
	}
	// The guest may be any user.
	if err := os.Chmod(path, 0o666); err != nil {
		return Listener{}, errors.Join(err, l.Close(), dir.Close())
	}
	return Listener{&guest.Socket{Listener: l, Path: at + "/" + name}, dir}, nil
}

// Remove removes the folder of a container that has ended, if there is one.
func Remove(engine string, name string) error {
	folder := Folder(engine, name)
	if folder == "" {
		return nil
	}
	return os.RemoveAll(folder)
}

// RemoveOrphans removes the folders of an engine whose containers do not exist.
func RemoveOrphans(engine string, exists func(name string) bool) error {
	entries, err := os.ReadDir(base())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		name, ours := strings.CutSuffix(e.Name(), suffix(engine))
		if !ours {
			continue
		}
		unlock, ok := lockFolder(Folder(engine, name), unix.LOCK_EX|unix.LOCK_NB)
		if !ok {
			continue // its container is being made, or the folder is not ours
		}
		if !exists(name) {
			errs = append(errs, Remove(engine, name))
		}
		unlock()
	}
	return errors.Join(errs...)
}

// Hold makes the folder for a new container, and keeps it from being removed until unlock is called
// or this program dies. fresh says that the folder is new. If ok is false there can be no folder.
func Hold(engine string, name string) (folder string, fresh bool, unlock func(), ok bool) {
	for range holdAttempts {
		var made bool
		if folder, made = makeFolder(engine, name); folder == "" {
			break
		}
		fresh = fresh || made
		// A collection, which finds no container yet, may remove the folder first.
		if unlock, ok = lockFolder(folder, unix.LOCK_SH); ok {
			return folder, fresh, unlock, true
		}
	}
	return "", false, nil, false
}

// holdAttempts bounds the attempts to make the folder. Programs collect once a minute.
const holdAttempts = 3

// lockFolder locks a folder. It returns false if another program has locked or removed the folder.
func lockFolder(folder string, how int) (unlock func(), ok bool) {
	dir, err := openFolder(folder)
	if err != nil {
		return nil, false
	}
	unlock = func() { _ = dir.Close() } // nothing was written to it
	for {
		err := unix.Flock(int(dir.Fd()), how)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && isStill(folder, dir):
			return unlock, true
		}
		unlock()
		return nil, false
	}
}

// isStill reports whether name still means the open folder.
func isStill(name string, dir *os.File) bool {
	now, err := os.Lstat(name)
	opened, oerr := dir.Stat()
	return err == nil && oerr == nil && os.SameFile(now, opened)
}

// executableThere reports whether programs can be executed on the file system of a file.
func executableThere(file string) bool {
	var st unix.Statfs_t
	return unix.Statfs(file, &st) == nil && st.Flags&unix.ST_NOEXEC == 0
}
