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
}

const (
	// most is how many sandboxes are remembered; the oldest is forgotten first.
	most = 4096
	// maxSize limits a file: 16 MiB.
	maxSize = 16 << 20
	// lockTimeout is how long another program may hold the records.
	lockTimeout = 5 * time.Second
)

// changing holds the records against other goroutines, and a file of the folder of locks against other programs.
var changing sync.Mutex

// Store is the open folder of the records.
type Store struct{ root *os.Root }

// Open opens the records. A folder that other users can read or change is fs.ErrPermission. The caller closes the store.
func Open() (*Store, error) {
	root, err := statedir.Open("records")
	if err != nil {
		return nil, err
	}
	s := &Store{root}
	if err := s.takeOld(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
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
		return nil, fmt.Errorf("%s is damaged: %w", filepath.Join(s.root.Name(), name), err)
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

// change changes the record of a sandbox as one step. If there is none, it begins with first; without a first it stays so.
func (s *Store) change(typ, id string, first *Record, f func(*Record)) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.Load(typ, id)
	if err != nil {
		return err
	}
	isNew := r == nil
	if isNew {
		if first == nil {
			return nil
		}
		r = new(Record)
		*r = *first
	}
	f(r)
	if err := s.write(fileOf(typ, id), r); err != nil {
		return err
	}
	if isNew {
		return statedir.Prune(s.root, most, math.MaxInt64)
	}
	return nil
}

// lock excludes other changes.
func (s *Store) lock() (unlock func(), err error) {
	changing.Lock()
	defer func() {
		if err != nil {
			changing.Unlock()
		}
	}()
	locks, err := statedir.Open("locks")
	if err != nil {
		return nil, err
	}
	defer func() { _ = locks.Close() }() // nothing was written
	release, err := flock.LockWithin(filepath.Join(locks.Name(), "records"), lockTimeout)
	if err != nil {
		return nil, err
	}
	return func() { release(); changing.Unlock() }, nil
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

// Remove forgets a sandbox that has ended.
func (s *Store) Remove(typ, id string) error { return s.root.Remove(fileOf(typ, id)) }

// find returns the records that match, and their files.
func (s *Store) find(match func(*Record) bool) (map[string]*Record, error) {
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	found := map[string]*Record{}
	for _, entry := range entries {
		if r, err := s.read(entry.Name()); err == nil && r != nil && match(r) {
			found[entry.Name()] = r
		}
	}
	return found, nil
}

// Find returns the record of a sandbox; nil if there is none or if it cannot be read.
func Find(typ, id string) *Record {
	s, err := Open()
	if err != nil {
		return nil
	}
	defer func() { _ = s.Close() }() // it was only read
	r, _ := s.Load(typ, id)
	return r
}

// Forget removes the record of a sandbox that has ended. A record that cannot be removed is forgotten later as the oldest
// one.
func Forget(typ, id string) {
	if s, err := Open(); err == nil {
		_ = errors.Join(s.Remove(typ, id), s.Close())
	}
}

// MarkEnding records that a sandbox is about to end. If that fails, lists show it as running.
func MarkEnding(typ, id string) {
	if s, err := Open(); err == nil {
		_ = errors.Join(s.change(typ, id, nil, func(r *Record) { r.Ending = time.Now().UTC() }), s.Close())
	}
}
