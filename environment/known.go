package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/internal/statedir"
)

// known is what this machine remembers of a sandbox that is kept, in a file that
// nothing in the sandbox can write.
type known struct {
	note
	Agent   Agent    `json:"agent"`
	Profile *Profile `json:"profile,omitempty"`
	// Folders are those of this machine that the workspace began with.
	Folders []Source `json:"folders,omitempty"`
	// Baseline is the SHA-256 of the sandbox's record of the workspace as it was in
	// the beginning; empty for none.
	Baseline string `json:"baseline,omitempty"`
}

// maxKnown is how many sandboxes this machine remembers; the oldest is forgotten
// first.
const maxKnown = 4096

// knownFolder opens the folder of what is remembered, which is nobody else's.
func knownFolder() (*os.Root, error) { return statedir.Open("sandboxes") }

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
	if err := replaceFile(root, knownName(typ, id), data); err != nil {
		return err
	}
	return statedir.Prune(root, maxKnown, math.MaxInt64)
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
		err = statedir.Private(filepath.Join(root.Name(), name), info)
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
	for _, open := range []func() (*os.Root, error){knownFolder, activityFolder} {
		if root, err := open(); err == nil {
			_ = root.Remove(knownName(typ, id))
			_ = root.Close()
		}
	}
}
