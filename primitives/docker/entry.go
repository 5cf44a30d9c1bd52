package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// entry is an archive of one file.
type entry struct {
	done  func() error // says why it is to end
	parts []io.Reader  // that are left: its header, the content, what ends it
	pace  pace

	mu  sync.Mutex
	err error // of the content
}

// newEntry returns the archive of a file that only its owner can use.
func newEntry(done func() error, to guest.Staged, content io.Reader, size int64) (*entry, error) {
	var head bytes.Buffer
	err := tar.NewWriter(&head).WriteHeader(&tar.Header{
		Name: to.Name, Typeflag: tar.TypeReg, Mode: 0o600, Size: size, Uid: to.UID, Gid: to.GID, ModTime: time.Now(),
	})
	if err != nil {
		return nil, err
	}
	const block = 512
	padding := (block - size%block) % block
	return &entry{done: done, pace: startPace(), parts: []io.Reader{&head, content, bytes.NewReader(make([]byte, padding+2*block))}}, nil
}

// Read reads the archive. If the content fails or is slow it ends there.
func (e *entry) Read(p []byte) (int, error) {
	if err := e.done(); err != nil {
		e.fail(err)
		e.parts = nil
	}
	for len(e.parts) > 0 {
		asked := time.Now()
		n, err := e.parts[0].Read(p)
		switch {
		case e.pace.isSlow(time.Since(asked)):
			e.fail(errSlow)
			e.parts = nil
			return 0, io.EOF
		case errors.Is(err, io.EOF):
			e.parts = e.parts[1:]
		case err != nil:
			e.fail(err)
			e.parts = nil
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}

func (e *entry) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// failure is the error of the content.
func (e *entry) failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}
