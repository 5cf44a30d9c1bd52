package environment

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/google/uuid"
)

// known is what this machine remembers of a sandbox that is kept, in a file that
// nothing in the sandbox can write.
type known struct {
	note
	Agent   Agent    `json:"agent"`
	Profile *Profile `json:"profile,omitempty"`
	// Baseline is the SHA-256 of the sandbox's record of the workspace as it was in
	// the beginning; empty for none.
	Baseline string `json:"baseline,omitempty"`
}

// maxKnown is how many sandboxes this machine remembers; the oldest is forgotten
// first.
const maxKnown = 4096

// knownFolder opens the folder of what is remembered, which is nobody else's.
func knownFolder() (*os.Root, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		state = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(state, "agentenv", "sandboxes")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil {
		err = isPrivate(dir, info)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// isPrivate refuses what others than this user can change or read.
func isPrivate(name string, info fs.FileInfo) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("make %s yours alone, with chmod go=: %w", name, fs.ErrPermission)
	}
	return nil
}

// knownName is the file for a sandbox.
func knownName(typ, id string) string {
	sum := sha256.Sum256([]byte(typ + "\x00" + id))
	return hex.EncodeToString(sum[:])
}

// remember replaces what is known of a sandbox.
func remember(typ, id string, k known) (err error) {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	root, err := knownFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	part := uuid.NewString()
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(part, knownName(typ, id))
	}
	if err != nil {
		return errors.Join(err, root.Remove(part))
	}
	return forgetOldest(root, maxKnown)
}

// forgetOldest removes all but the latest files of a folder.
func forgetOldest(root *os.Root, most int) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil || len(entries) <= most {
		return err
	}
	infos := make([]fs.FileInfo, 0, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // else another program has removed it
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, info := range infos[:max(len(infos)-most, 0)] {
		if err := root.Remove(info.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// recall returns what is known of a sandbox; nil if nothing is.
func recall(typ, id string) (_ *known, err error) {
	root, err := knownFolder()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name := knownName(typ, id)
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err == nil {
		err = isPrivate(filepath.Join(root.Name(), name), info)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, err
	}
	k := new(known)
	if err := json.Unmarshal(data, k); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", filepath.Join(root.Name(), name), err)
	}
	return k, nil
}

// forget removes what is known of a sandbox that has ended. What cannot be removed is
// forgotten as the oldest some day.
func forget(typ, id string) {
	root, err := knownFolder()
	if err != nil {
		return
	}
	_ = root.Remove(knownName(typ, id))
	_ = root.Close()
}
