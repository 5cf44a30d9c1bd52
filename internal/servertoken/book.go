package servertoken

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/internal/statedir"
)

// Issued is a token that this user has given to somebody. Only its hash is stored.
type Issued struct {
	Name    string    `json:"name"`
	Role    string    `json:"role"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero means never
	// Hash is the SHA-256 of the token, which has 130 random bits, in hexadecimal digits.
	Hash string `json:"sha256"`
}

// expired reports whether the token is not accepted any more.
func (i Issued) expired(now time.Time) bool { return !i.Expires.IsZero() && !now.Before(i.Expires) }

// prefix makes a token known to tools that look for secrets.
const prefix = "agentenv_"

var book = statedir.Book[[]Issued]{Folder: folder, Name: "tokens", MaxSize: 4 << 20}

// errUnknown does not say which tokens there are.
var errUnknown = errors.New("it is unknown, or was removed")

// List returns the issued tokens, by name.
func List() ([]Issued, error) {
	list, err := book.Read()
	if err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	return list, nil
}

// nameError is the error for a name that has a token, or none. Its text names no file, as that of the sentinel does.
type nameError struct {
	name, problem string
	sentinel      error
}

func (e *nameError) Error() string { return fmt.Sprintf("%q %s", e.name, e.problem) }

func (e *nameError) Unwrap() error { return e.sentinel }

// Issue makes a token. A name that has one is fs.ErrExist. Zero lasts for ever.
func Issue(name, role string, lasts time.Duration) (token string, err error) {
	token = prefix + rand.Text()
	now := time.Now().UTC()
	made := Issued{Name: name, Role: role, Created: now.Truncate(time.Second), Hash: hashOf(token)}
	if lasts > 0 {
		made.Expires = now.Add(lasts)
	}
	err = book.Change(List, func(list []Issued) ([]Issued, error) {
		i, found := find(list, name)
		if found {
			return nil, &nameError{name, "has a token; remove it first", fs.ErrExist}
		}
		return slices.Insert(list, i, made), nil
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// Revoke removes the token of a name. A name without one is fs.ErrNotExist. Servers refuse it from the next request on.
func Revoke(name string) error {
	return book.Change(List, func(list []Issued) ([]Issued, error) {
		i, found := find(list, name)
		if !found {
			return nil, &nameError{name, "has no token", fs.ErrNotExist}
		}
		return slices.Delete(list, i, i+1), nil
	})
}

// Check returns what was issued with a token.
func Check(token string) (Issued, error) {
	list, err := List()
	if err != nil {
		return Issued{}, err
	}
	hash := []byte(hashOf(token))
	var found Issued
	for _, i := range list { // all of them, so that the time does not depend on which one it is
		if subtle.ConstantTimeCompare(hash, []byte(i.Hash)) == 1 {
			found = i
		}
	}
	switch {
	case found.Name == "":
		return Issued{}, errUnknown
	case found.expired(time.Now()):
		return Issued{}, fmt.Errorf("it has expired at %s", found.Expires.Format(time.RFC3339))
	}
	return found, nil
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func find(list []Issued, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(i Issued, name string) int {
		switch {
		case i.Name < name:
			return -1
		case i.Name > name:
			return 1
		}
		return 0
	})
}
