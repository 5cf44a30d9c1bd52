// Package answers stores the answers to permission requests that hold always, in a file of this user's state folder. An
// answer holds for one call: in the same project, for the same agent and user, in a sandbox that is isolated as much.
package answers

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/statedir"
)

const (
	version    = 1
	maxAnswers = 4096
	maxCall    = 1 << 10 // bytes of the text of a call
)

var file = statedir.Book[book]{Folder: "permissions", Name: "answers", MaxSize: 16 << 20}

// Place is where an answer holds.
type Place struct {
	// User is the name of a server's user; empty for the user of this machine.
	User string `json:"user,omitempty"`
	// Project names the folders and repositories with which the workspace begins.
	Project   string `json:"project"`
	Agent     string `json:"agent"`
	Isolation string `json:"isolation"`
}

// Answer is a stored answer.
type Answer struct {
	// ID is short: the first digits of a digest of what the answer is about.
	ID string `json:"id"`
	Place
	// Tool and Call describe the call, for users. Key identifies it, with what asked about it.
	Tool string `json:"tool"`
	Call string `json:"call"`
	Key  string `json:"key,omitempty"`
	// Allow says whether the call is allowed.
	Allow bool      `json:"allow"`
	By    string    `json:"by,omitempty"`
	Time  time.Time `json:"time"`
}

// book is the file.
type book struct {
	Version int      `json:"version"`
	Answers []Answer `json:"answers"`
}

// List returns the stored answers, the oldest first.
func List() ([]Answer, error) {
	b, err := read()
	return b.Answers, err
}

func read() (book, error) {
	b, err := file.Read()
	switch {
	case err != nil:
	case b.Version == 0 && b.Answers == nil: // there is no file
		b.Version = version
	case b.Version != version:
		err = fmt.Errorf("%w: it has the version %d, and this program knows %d", errors.ErrUnsupported, b.Version, version)
	}
	if err != nil {
		return book{}, fmt.Errorf("read the stored answers to permission requests: %w", err)
	}
	return b, nil
}

// Find returns the answer to a call; ok is false if there is none.
func Find(at Place, key string) (found Answer, ok bool, err error) {
	list, err := List()
	if err != nil {
		return Answer{}, false, err
	}
	i := slices.IndexFunc(list, func(a Answer) bool { return a.Place == at && a.Key == key })
	if i < 0 {
		return Answer{}, false, nil
	}
	return list[i], true, nil
}

// Add stores an answer in place of an earlier one to the same call, and sets its ID and Time.
func Add(a Answer) error {
	sum := sha256.Sum256([]byte(strings.Join([]string{a.User, a.Project, a.Agent, a.Isolation, a.Key}, "\x00")))
	a.ID, a.Time = fmt.Sprintf("%x", sum[:6]), time.Now().UTC().Truncate(time.Second)
	if len(a.Call) > maxCall {
		a.Call = strings.ToValidUTF8(a.Call[:maxCall], "") + "..."
	}
	return change(func(list []Answer) ([]Answer, error) {
		list = slices.DeleteFunc(list, func(old Answer) bool { return old.ID == a.ID })
		if len(list) >= maxAnswers {
			return nil, fmt.Errorf("%d answers to permission requests are stored, and no more can be; remove some with 'envctl permissions rm'", maxAnswers)
		}
		return append(list, a), nil
	})
}

// Remove removes the answers with the IDs, or none. An unknown ID is fs.ErrNotExist. Running sessions ask again too.
func Remove(ids ...string) error {
	return change(func(list []Answer) ([]Answer, error) {
		for _, id := range ids {
			i := slices.IndexFunc(list, func(a Answer) bool { return a.ID == id })
			if i < 0 {
				return nil, UnknownError(id)
			}
			list = slices.Delete(list, i, i+1)
		}
		return list, nil
	})
}

// UnknownError is the error for an ID that no stored answer has. It is fs.ErrNotExist.
type UnknownError string

// Error names the ID.
func (id UnknownError) Error() string { return fmt.Sprintf("no stored answer %q", string(id)) }

// Unwrap returns fs.ErrNotExist.
func (UnknownError) Unwrap() error { return fs.ErrNotExist }

// change replaces the list.
func change(do func([]Answer) ([]Answer, error)) error {
	return file.Change(read, func(b book) (_ book, err error) {
		b.Answers, err = do(b.Answers)
		return b, err
	})
}
