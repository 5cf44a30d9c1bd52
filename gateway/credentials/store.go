// Package credentials stores secrets of this machine's user in one file, encrypted with age
// (https://age-encryption.org). Without a key it stores nothing: the file never exists in plain
// text.
package credentials

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"filippo.io/age"

	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/statedir"
)

var (
	// ErrNotFound means that no secret has this name.
	ErrNotFound = errors.New("no such credential")
	// ErrKey means that the key is missing, invalid, or not the key of the store.
	ErrKey = errors.New("key of the store")
	// ErrDamaged means that the store cannot be read although its key opens it, or that the
	// file is not a store. The file is left unchanged.
	ErrDamaged = errors.New("the store of credentials is damaged")
)

// Error wraps an error of this package and names the credential. No error of this package
// contains a secret or a key.
type Error struct {
	Op   string // set, get, remove, list or init
	Name string // empty for operations on the whole store
	Err  error
}

// Error names the operation and the credential.
func (e *Error) Error() string {
	if e.Name == "" {
		return "credentials: " + e.Op + ": " + e.Err.Error()
	}
	return "credentials: " + e.Op + " " + e.Name + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

const (
	storeFile = "store.age"
	partFile  = "store.age.part" // written by the program that holds the lock
	lockFile  = "lock"

	maxName   = 63
	maxSecret = 64 << 10 // bytes
	maxStore  = 4 << 20  // bytes, encrypted or not
)

// Entry describes a stored credential without its secret.
type Entry struct {
	Name    string    `json:"name"`
	Changed time.Time `json:"changed"`
}

// Store is the store of this user, in the folder agentenv/credentials of the state folder
// (XDG_STATE_HOME, or ~/.local/state). Programs and goroutines may use it at the same time.
// Every error of its methods is an [Error].
//
// Its key is an age identity (AGE-SECRET-KEY-1...): the value of AGENTENV_CREDENTIALS_KEY, else
// the content of the file that AGENTENV_CREDENTIALS_KEY_FILE names, else the content of
// agentenv/credentials.key in the user's configuration folder.
type Store struct{ root *os.Root }

// Open opens the store. A folder that other users can read or change is fs.ErrPermission. Open
// does not need the key; the methods do. The caller must close the store.
func Open() (*Store, error) {
	root, err := statedir.Open("credentials")
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	return &Store{root}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.root.Close() }

// Set stores a secret, and replaces a secret of the same name. A name has up to 63 letters,
// digits, '_', '.' and '-'. A secret has up to 64 KiB of UTF-8 without control characters, and
// no white space around it, because it goes into an HTTP header. Other names and secrets are
// fs.ErrInvalid.
func (s *Store) Set(ctx context.Context, name, secret string) error {
	if err := errors.Join(checkName(name), checkSecret(secret)); err != nil {
		return wrap("set", name, err)
	}
	return wrap("set", name, s.change(ctx, func(c contents) error {
		c[name] = stored{Secret: secret, Changed: time.Now().UTC().Truncate(time.Second)}
		return nil
	}))
}

// Remove removes a secret. An unknown name is [ErrNotFound].
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return wrap("remove", name, err)
	}
	return wrap("remove", name, s.change(ctx, func(c contents) error {
		if _, ok := c[name]; !ok {
			return ErrNotFound
		}
		delete(c, name)
		return nil
	}))
}

// Get returns a secret. An unknown name is [ErrNotFound].
func (s *Store) Get(name string) (string, error) {
	if err := checkName(name); err != nil {
		return "", wrap("get", name, err)
	}
	c, err := s.read()
	if err != nil {
		return "", wrap("get", name, err)
	}
	found, ok := c[name]
	if !ok {
		return "", wrap("get", name, ErrNotFound)
	}
	return found.Secret, nil
}

// List returns all entries, sorted by name. It needs the key, unless the store does not exist
// yet.
func (s *Store) List() ([]Entry, error) {
	c, err := s.read()
	if err != nil {
		return nil, wrap("list", "", err)
	}
	list := make([]Entry, 0, len(c))
	for name, stored := range c {
		list = append(list, Entry{name, stored.Changed})
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Init creates a key in the user's configuration folder and returns its path. If there is a
// key, it does nothing and returns "". If the store is encrypted with another key, it creates
// no key and returns [ErrKey].
func (s *Store) Init(ctx context.Context) (path string, err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return "", wrap("init", "", err)
	}
	defer unlock()
	_, err = findKey()
	if err == nil || !errors.Is(err, errNoKeyFile) {
		return "", wrap("init", "", err)
	}
	switch _, statErr := s.root.Lstat(storeFile); {
	case statErr == nil:
		return "", wrap("init", "", fmt.Errorf("%w: %s needs the key that it was made with; put that key back, or remove the file", ErrKey, s.path()))
	case !errors.Is(statErr, fs.ErrNotExist):
		return "", wrap("init", "", statErr)
	}
	path, err = makeKey()
	return path, wrap("init", "", err)
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if len(name) > maxName { // the name may be a secret, so it must not be quoted
		name = ""
	}
	return &Error{Op: op, Name: name, Err: err}
}

func (s *Store) path() string { return filepath.Join(s.root.Name(), storeFile) }

func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	return flock.Lock(ctx, filepath.Join(s.root.Name(), lockFile), nil)
}

// change edits the contents. Only one program at a time edits them.
func (s *Store) change(ctx context.Context, edit func(contents) error) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := s.read()
	if err != nil {
		return err
	}
	if err := edit(c); err != nil {
		return err
	}
	return s.write(c)
}

// read returns the contents. It needs no lock because write replaces the file atomically.
func (s *Store) read() (contents, error) {
	f, err := input.OpenIn(s.root, storeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return contents{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err == nil {
		err = statedir.Private(s.path(), info)
	}
	if err != nil {
		return nil, err
	}
	encrypted, err := input.ReadAll(f, s.path(), maxStore)
	if err != nil {
		return nil, err
	}
	key, err := findKey()
	if err != nil {
		return nil, err
	}
	damaged := fmt.Errorf("%w: %s; put back a copy, or remove it and set the credentials again", ErrDamaged, s.path())
	r, err := age.Decrypt(bytes.NewReader(encrypted), key)
	if _, ok := errors.AsType[*age.NoIdentityMatchError](err); ok {
		return nil, fmt.Errorf("%w: it is not the one that %s was made with; give that one", ErrKey, s.path())
	}
	if err != nil {
		return nil, damaged
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, damaged
	}
	c, ok := decode(plain)
	if !ok {
		return nil, damaged
	}
	return c, nil
}

// write replaces the file. The caller holds the lock.
func (s *Store) write(c contents) (err error) {
	key, err := findKey()
	if err != nil {
		return err
	}
	var encrypted bytes.Buffer
	w, err := age.Encrypt(&encrypted, key.Recipient())
	if err != nil {
		return err
	}
	if _, err := w.Write(c.encode()); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if encrypted.Len() > maxStore {
		return fmt.Errorf("%w: the store would be larger than %d bytes; remove credentials first", fs.ErrInvalid, maxStore)
	}
	if err := s.root.Remove(partFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := s.root.OpenFile(partFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(encrypted.Bytes())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.root.Rename(partFile, storeFile)
	}
	if err != nil {
		return errors.Join(err, s.root.Remove(partFile))
	}
	return nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the name is empty", fs.ErrInvalid)
	case len(name) > maxName:
		return fmt.Errorf("%w: the name has more than %d characters", fs.ErrInvalid, maxName)
	case strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_.-", r)
	}):
		return fmt.Errorf("%w: the name has other characters than letters, digits, '_', '.' and '-'", fs.ErrInvalid)
	}
	return nil
}

func checkSecret(secret string) error {
	switch {
	case secret == "":
		return fmt.Errorf("%w: the secret is empty", fs.ErrInvalid)
	case len(secret) > maxSecret:
		return fmt.Errorf("%w: the secret has more than %d KiB", fs.ErrInvalid, maxSecret>>10)
	case !utf8.ValidString(secret):
		return fmt.Errorf("%w: the secret is not UTF-8", fs.ErrInvalid)
	case strings.ContainsFunc(secret, unicode.IsControl):
		return fmt.Errorf("%w: the secret has a line break or another control character", fs.ErrInvalid)
	case strings.TrimSpace(secret) != secret:
		return fmt.Errorf("%w: the secret begins or ends with white space", fs.ErrInvalid)
	}
	return nil
}
