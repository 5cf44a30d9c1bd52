package statedir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/agentenv-dev/agentenv/internal/flock"
)

// bookPatience is how long a change waits for another one.
const bookPatience = 10 * time.Second

// Book is a JSON file that the user's programs change: Folder/Name.json, with its lock beside it. Only this user can access it.
type Book[T any] struct {
	Folder, Name string
	// MaxSize limits the file, in bytes.
	MaxSize int64
}

// Read returns what the file has; the zero value if there is none.
func (b Book[T]) Read() (v T, err error) {
	state, err := Path()
	if err != nil {
		return v, err
	}
	data, err := ReadPrivate(filepath.Join(state, b.Folder, b.Name+".json"), b.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	return v, err
}

// Change replaces what read returns with what do makes of it, one change at a time; an error of either leaves it. A program that
// dies meanwhile leaves the old content.
func (b Book[T]) Change(read func() (T, error), do func(T) (T, error)) (err error) {
	root, err := Open(b.Folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	unlock, err := flock.LockWithin(filepath.Join(root.Name(), b.Name+".lock"), bookPatience)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := read()
	if err != nil {
		return err
	}
	if v, err = do(v); err != nil {
		return err
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return replace(root, b.Name+".json", append(data, '\n'))
}

// replace replaces a file as a whole. Only one program at a time may do so.
func replace(root *os.Root, name string, data []byte) error {
	temporary := name + ".new"
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return root.Rename(temporary, name)
}
