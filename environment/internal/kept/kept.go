// Package kept remembers sandboxes on this machine: one file for each, which nothing in a sandbox can write.
package kept

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
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Record is what this machine remembers of a sandbox.
type Record struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Agent is the name of its agent; empty for none.
	Agent string `json:"agent,omitempty"`
	Kept  bool   `json:"kept,omitempty"`
	// Began and Ended are those of the latest query, which runs while it has not ended.
	Began time.Time      `json:"began,omitzero"`
	Ended time.Time      `json:"ended,omitzero"`
	By    owner.Identity `json:"by,omitzero"` // the program of that query
	// Waiting are the requests of that query that wait for an answer, oldest first.
	Waiting []Waiting           `json:"waiting,omitempty"`
	Usage   runnerscripts.Usage `json:"usage,omitzero"` // of all queries
	// Used is what the gateway has counted.
	Used gateway.Used `json:"used,omitzero"`
	// Ending is when a program began to end the sandbox.
	Ending time.Time `json:"ending,omitzero"`
	// Made is what the sandbox was made with, as package environment writes it for Attach. Only this decides what is run
	// and allowed in the sandbox; the rest is for people.
	Made json.RawMessage `json:"made,omitempty"`
}

// Waiting is a permission request that waits for an answer.
type Waiting struct {
	ID    string    `json:"id"`
	Title string    `json:"title"` // of the tool call, as one line
	Since time.Time `json:"since"`
	// Request is the whole request. It is not stored.
	Request *runnerscripts.PermissionRequest `json:"-"`
}

// ErrDamaged means that a record cannot be read. Its text names the file.
var ErrDamaged = errors.New("is damaged")

const (
	// most is how many sandboxes are remembered; the oldest is forgotten first.
	most = 4096
	// maxSize limits a file: 16 MiB.
	maxSize = 16 << 20
	// locks is how many files lock the records of all sandboxes. A lock is held for some microseconds.
	locks = 64
)

// lockTimeout is how long a change waits for another program. Tests shorten it.
var lockTimeout = time.Second

// changing locks records for the goroutines of this program, as files do for all programs.
var changing [locks]sync.Mutex

// Store is the open folder of the records.
type Store struct{ root *os.Root }

// Open opens the records. A folder that other users can read or change is fs.ErrPermission. The caller closes the store.
func Open() (*Store, error) {
	root, err := statedir.Open("records")
	if err != nil {
		return nil, err
	}
	return &Store{root}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.root.Close() }

// fileOf returns the name of the file for a sandbox.
func fileOf(typ, id string) string {
	sum := sha256.Sum256([]byte(typ + "\x00" + id))
	return hex.EncodeToString(sum[:])
}

// Load returns the record of a sandbox; nil for none. A file that other users can read or change is fs.ErrPermission.
func (s *Store) Load(typ, id string) (*Record, error) { return s.read(fileOf(typ, id)) }

func (s *Store) read(name string) (*Record, error) {
	data, err := readPrivate(s.root, name)
	if data == nil || err != nil {
		return nil, err
	}
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s %w: %w", filepath.Join(s.root.Name(), name), ErrDamaged, err)
	}
	return r, nil
}

// readPrivate returns the content of a file that only this user can access; nil for no file.
func readPrivate(root *os.Root, name string) ([]byte, error) {
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
	return io.ReadAll(io.LimitReader(f, maxSize))
}

// begin stores the record of a new sandbox, in place of whatever is there.
func (s *Store) begin(r Record) error {
	name := fileOf(r.Type, r.ID)
	unlock, err := s.lock(name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.write(name, &r); err != nil {
		return err
	}
	return statedir.Prune(s.root, most, math.MaxInt64)
}

// change changes the record of a sandbox as one step. The error is fs.ErrNotExist if there is none.
func (s *Store) change(typ, id string, f func(*Record)) error {
	name := fileOf(typ, id)
	unlock, err := s.lock(name)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.read(name)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%w: this machine remembers nothing of the %s sandbox %s", fs.ErrNotExist, typ, id)
	}
	f(r)
	return s.write(name, r)
}

// lock excludes other changes of a record. Where files cannot be locked, it excludes those of this program.
func (s *Store) lock(name string) (unlock func(), err error) {
	n, err := strconv.ParseUint(name[:2], 16, 8)
	if err != nil {
		return nil, err
	}
	n %= locks
	folder, err := statedir.Open("locks")
	if err != nil {
		return nil, err
	}
	defer func() { _ = folder.Close() }() // nothing was written
	changing[n].Lock()
	release, err := flock.LockWithin(filepath.Join(folder.Name(), fmt.Sprintf("records-%02x", n)), lockTimeout)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		changing[n].Unlock()
		return nil, err
	}
	return func() {
		if release != nil {
			release()
		}
		changing[n].Unlock()
	}, nil
}

// write replaces a file atomically.
func (s *Store) write(name string, r *Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	part := uuid.NewString()
	f, err := s.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.root.Rename(part, name)
	}
	if err != nil {
		return errors.Join(err, s.root.Remove(part))
	}
	return nil
}

// remove removes the record of a sandbox. A change that is under way does not bring it back.
func (s *Store) remove(typ, id string) error {
	name := fileOf(typ, id)
	unlock, err := s.lock(name)
	if err != nil {
		return err
	}
	defer unlock()
	return s.root.Remove(name)
}

// find returns the records that match.
func (s *Store) find(match func(*Record) bool) ([]*Record, error) {
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var found []*Record
	for _, entry := range entries {
		if r, err := s.read(entry.Name()); err == nil && r != nil && match(r) {
			found = append(found, r)
		}
	}
	return found, nil
}

// Find returns the record of a sandbox. The error is fs.ErrNotExist if there is none.
func Find(typ, id string) (*Record, error) {
	s, err := Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	r, err := s.Load(typ, id)
	if err == nil && r == nil {
		err = fmt.Errorf("%w: this machine remembers nothing of the %s sandbox %s", fs.ErrNotExist, typ, id)
	}
	return r, err
}

// Forget removes the record of a sandbox that has ended. A record that cannot be removed is removed later as the oldest
// one.
func Forget(typ, id string) {
	if s, err := Open(); err == nil {
		_ = errors.Join(s.remove(typ, id), s.Close())
	}
}

// MarkEnding records that a sandbox is about to end. If that fails, lists show it as running.
func MarkEnding(typ, id string) {
	if s, err := Open(); err == nil {
		_ = errors.Join(s.change(typ, id, func(r *Record) { r.Ending = time.Now().UTC() }), s.Close())
	}
}
