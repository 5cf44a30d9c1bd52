// Package audit appends to the audit log of this user: one line of JSON for each decision about a tool call, each use of
// a credential and each refused connection, of all programs of the user on this machine. The log is audit.jsonl in the
// folder "audit" of the state folder. When it is full it becomes audit.1.jsonl, that audit.2.jsonl, and so on; the oldest
// file is removed.
//
// Rotation is here and not in a library, because several programs append at once: the libraries expect one.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/internal/statedir"
)

const (
	folder   = "audit"
	lockFile = "audit.lock"
	// maxSize is the size in bytes at which a file is full, and maxFiles how many there are.
	maxSize  = 16 << 20
	maxFiles = 5
	// maxText limits each text of an entry, in bytes.
	maxText = 4 << 10
)

// The values of Entry.Event.
const (
	Permission = "permission" // a tool call was allowed or denied
	Credential = "credential" // the gateway added a key to a request, or an executor got it
	Refused    = "refused"    // the gateway refused a connection
)

// Entry is one line.
type Entry struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"`
	Session string    `json:"session,omitempty"`
	Sandbox string    `json:"sandbox,omitempty"`
	Query   string    `json:"query,omitempty"`

	// Tool is the portable name of the tool, and Call what it was called with: a command, files, or a URL.
	Tool string `json:"tool,omitempty"`
	Call string `json:"call,omitempty"`
	// Decision is "allow" or "deny". Reason, Rule, Scope and By are those of runnerscripts.PermissionResolved.
	Decision string `json:"decision,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Scope    string `json:"scope,omitempty"`
	By       string `json:"by,omitempty"`

	// Credential is the name of the credential, never its value, and Request the method and path that it was added to, or
	// "get_api_key" for one that an executor got.
	Credential string `json:"credential,omitempty"`
	Request    string `json:"request,omitempty"`
	// Host is the host that was refused, for the Reason.
	Host string `json:"host,omitempty"`
}

// texts returns the fields that a sandbox or a user may write.
func (e *Entry) texts() []*string {
	return []*string{&e.Tool, &e.Call, &e.Reason, &e.Rule, &e.By, &e.Credential, &e.Request, &e.Host}
}

// Cut shortens a text to what an entry holds.
func Cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-3], "") + "..."
}

// Log appends the entries of one session. It is safe for concurrent use. A nil Log discards them.
type Log struct {
	// Session and Sandbox are added to each entry.
	Session, Sandbox string
	// Hide redacts secrets in a text.
	Hide func(string) string
	// Failed gets the first error. Later ones are dropped, because the reader knows by then.
	Failed func(error)

	failed atomic.Bool
}

// Add appends an entry with the current time.
func (l *Log) Add(e Entry) {
	if l == nil {
		return
	}
	e.Time, e.Session, e.Sandbox = time.Now().UTC(), l.Session, l.Sandbox
	for _, text := range e.texts() {
		*text = l.Hide(*text)
	}
	if err := add(e, maxSize); err != nil && !l.failed.Swap(true) {
		l.Failed(fmt.Errorf("the audit log cannot be written: %w", err))
	}
}

// Path returns the path of the file to which entries are appended. It may not exist.
func Path() (string, error) {
	state, err := statedir.Path()
	if err != nil {
		return "", err
	}
	return filepath.Join(state, folder, file(0)), nil
}

func file(n int) string {
	if n == 0 {
		return "audit.jsonl"
	}
	return fmt.Sprintf("audit.%d.jsonl", n)
}

// add appends an entry, and rotates the files if the first one has size bytes then. It opens the file each time: another
// program may have rotated it.
func add(e Entry, size int64) (err error) {
	for _, text := range e.texts() {
		*text = Cut(*text)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	root, err := statedir.Open(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	f, err := root.OpenFile(file(0), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write, so that lines of several programs do not mix
	info, serr := f.Stat()
	if err = errors.Join(err, serr, f.Close()); err != nil || info.Size() < size {
		return err
	}
	return rotate(root, size)
}

// rotate renames the files. If another program does so already, it returns at once.
func rotate(root *os.Root, size int64) error {
	unlock, err := flock.LockWithin(filepath.Join(root.Name(), lockFile), 0)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	info, err := root.Stat(file(0))
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < size {
		return nil // another program has rotated them
	}
	if err != nil {
		return err
	}
	for n := maxFiles - 1; n > 0; n-- {
		if err := root.Rename(file(n-1), file(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
