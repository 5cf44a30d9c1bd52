package docker

import (
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

	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// linkBase is the folder of this user, on this machine, that the folders of its
// containers are in. Nobody else may enter it.
func linkBase() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "agentenv", "link")
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "agentenv", "link")
	}
	return filepath.Join(os.TempDir(), "agentenv-"+strconv.Itoa(os.Geteuid()), "link")
}

// linkFolder is the folder of a container; empty for an engine of another machine.
func linkFolder(eng *client.Client, name string) string {
	if !strings.HasPrefix(eng.DaemonHost(), "unix://") {
		return ""
	}
	return filepath.Join(linkBase(), name+linkSuffix(eng))
}

// linkSuffix tells the containers of different engines apart.
func linkSuffix(eng *client.Client) string {
	sum := sha256.Sum256([]byte(eng.DaemonHost()))
	return "-" + hex.EncodeToString(sum[:4])
}

// makeLink makes the folder of a container that is about to be made, and reports
// whether it was not there yet. Without one the container does without a socket.
func makeLink(eng *client.Client, name string, cfg Config) (folder string, fresh bool) {
	folder = linkFolder(eng, name)
	if cfg.NoSocket || folder == "" || os.MkdirAll(linkBase(), 0o700) != nil {
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

// openLink opens the folder of a container if it is what makeLink made: no link, and
// writable for this user only.
func openLink(folder string) (*os.File, error) {
	base, err := openOwn(unix.AT_FDCWD, filepath.Dir(folder), 0o700)
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	return openOwn(int(base.Fd()), filepath.Base(folder), 0o755)
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

// listen opens a socket in a folder. It is reached through the open folder: so the
// path may be long, and cannot come to mean another one.
func listen(folder string) (rendezvous, error) {
	dir, err := openLink(folder)
	if err != nil {
		return rendezvous{}, err
	}
	name := newID()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return rendezvous{}, errors.Join(err, dir.Close())
	}
	// The guest may be any user.
	if err := os.Chmod(path, 0o666); err != nil {
		return rendezvous{}, errors.Join(err, l.Close(), dir.Close())
	}
	return rendezvous{&guest.Socket{Listener: l, Path: linkDir + "/" + name}, dir}, nil
}

// dropLink removes the folder of a container that has ended.
func dropLink(eng *client.Client, name string) error {
	folder := linkFolder(eng, name)
	if folder == "" {
		return nil
	}
	return os.RemoveAll(folder)
}

// dropLinks removes the folders of this engine whose containers do not exist.
func dropLinks(eng *client.Client, exists func(name string) bool) error {
	entries, err := os.ReadDir(linkBase())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		name, ours := strings.CutSuffix(e.Name(), linkSuffix(eng))
		if !ours {
			continue
		}
		unlock, ok := lockLink(linkFolder(eng, name), unix.LOCK_EX|unix.LOCK_NB)
		if !ok {
			continue // its container is being made, or it is none of ours
		}
		if !exists(name) {
			errs = append(errs, dropLink(eng, name))
		}
		unlock()
	}
	return errors.Join(errs...)
}

// holdLink makes the folder of a container that is about to be made, see makeLink, and
// keeps it from being removed until it is unlocked or this program dies.
func holdLink(eng *client.Client, name string, cfg Config) (folder string, fresh bool, unlock func(), ok bool) {
	for range linkTries {
		var made bool
		if folder, made = makeLink(eng, name, cfg); folder == "" {
			break
		}
		fresh = fresh || made
		// A sweep, which finds no container yet, may be faster than this.
		if unlock, ok = lockLink(folder, unix.LOCK_SH); ok {
			return folder, fresh, unlock, true
		}
	}
	return "", false, nil, false
}

// linkTries is how often the folder is made. Programs sweep once a minute.
const linkTries = 3

// lockLink locks a folder; false if it is held by another, or was removed meanwhile.
func lockLink(folder string, how int) (unlock func(), ok bool) {
	dir, err := openLink(folder)
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

// isStill reports whether an open folder is what its name means.
func isStill(name string, dir *os.File) bool {
	now, err := os.Lstat(name)
	opened, oerr := dir.Stat()
	return err == nil && oerr == nil && os.SameFile(now, opened)
}
