package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync"
)

// Temporary keeps blobs in a file without a name on this machine, which disappears when this program ends, even if it is
// killed. Several goroutines may use it at once.
type Temporary struct {
	below Blobs // may be nil
	mu    sync.RWMutex
	file  *os.File // nil before the first blob
	size  int64
	at    map[Digest]extent
	users int
}

type extent struct{ offset, size int64 }

// NewTemporary returns an empty Temporary. It also has the blobs of below, which may be nil.
func NewTemporary(below Blobs) *Temporary {
	return &Temporary{below: below, at: make(map[Digest]extent), users: 1}
}

// PutBlobs implements Blobs.
func (t *Temporary) PutBlobs(_ context.Context, contents iter.Seq2[io.Reader, error]) ([]Digest, error) {
	var digests []Digest
	for r, err := range contents {
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(r) // a blob is small
		if err != nil {
			return nil, err
		}
		d := digestOf(data)
		if err := t.put(d, data); err != nil {
			return nil, fmt.Errorf("remember a state of the workspace on this machine: %w", err)
		}
		digests = append(digests, d)
	}
	return digests, nil
}

func (t *Temporary) put(d Digest, data []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.at[d]; ok {
		return nil
	}
	if t.users == 0 {
		return os.ErrClosed
	}
	if t.file == nil {
		f, err := os.CreateTemp("", "agentenv-snapshot-*")
		if err != nil {
			return err
		}
		t.file = f
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
	}
	if _, err := t.file.WriteAt(data, t.size); err != nil {
		return err
	}
	t.at[d] = extent{t.size, int64(len(data))}
	t.size += int64(len(data))
	return nil
}

// Blob implements Blobs.
func (t *Temporary) Blob(ctx context.Context, d Digest) (io.ReadCloser, error) {
	t.mu.RLock()
	at, ok := t.at[d]
	file := t.file
	t.mu.RUnlock()
	switch {
	case ok:
		return io.NopCloser(io.NewSectionReader(file, at.offset, at.size)), nil
	case t.below != nil:
		return t.below.Blob(ctx, d)
	}
	return nil, fmt.Errorf("a part of a state of the workspace: %w", fs.ErrNotExist)
}

// Share adds a user, who must call Close.
func (t *Temporary) Share() *Temporary {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users++
	return t
}

// Close releases the file when its last user has called it. It does nothing for a nil Temporary.
func (t *Temporary) Close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users = max(t.users-1, 0)
	if t.users > 0 || t.file == nil {
		return nil
	}
	file := t.file
	t.file, t.at = nil, nil
	err := file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
