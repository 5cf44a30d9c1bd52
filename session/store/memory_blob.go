package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"iter"
)

// memoryBlob is content shared by sessions.
type memoryBlob struct {
	data     []byte
	sessions int // how many sessions have it
}

// PutBlobs stores contents for a session.
func (m *Memory) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]Digest, error) {
	if _, err := m.session(ctx, "put", id); err != nil {
		return nil, err
	}
	var digests []Digest
	for r, err := range contents {
		var data []byte
		if err == nil {
			data, err = io.ReadAll(r)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, &Error{Op: "put", ID: id, Err: err}
		}
		sum := sha256.Sum256(data)
		d := Digest(hex.EncodeToString(sum[:]))
		if err := m.keepBlob(ctx, id, d, data); err != nil {
			return nil, err
		}
		digests = append(digests, d)
	}
	return digests, nil
}

func (m *Memory) keepBlob(ctx context.Context, id string, d Digest, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.sessions[id]
	if !ok { // deleted meanwhile
		return &Error{Op: "put", ID: id, Err: ErrNotFound}
	}
	if _, ok := s.blobs[d]; ok {
		return nil
	}
	s.mu.RLock()
	s.blobs[d] = s.record.LastSeq
	s.mu.RUnlock()
	if m.blobs[d] == nil {
		m.blobs[d] = &memoryBlob{data: bytes.Clone(data)} // without the spare capacity of ReadAll
	}
	m.blobs[d].sessions++
	return nil
}

// Blob returns the content of a blob.
func (m *Memory) Blob(ctx context.Context, id string, d Digest) (io.ReadCloser, error) {
	s, err := m.session(ctx, "blob", id)
	if err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if _, ok := s.blobs[d]; !ok {
		return nil, &Error{Op: "blob", ID: id, Err: fmt.Errorf("%w: no blob %s", fs.ErrNotExist, d)}
	}
	return io.NopCloser(bytes.NewReader(m.blobs[d].data)), nil
}

// RemoveBlobs removes blobs of a session.
func (m *Memory) RemoveBlobs(ctx context.Context, id string, digests ...Digest) error {
	s, err := m.session(ctx, "remove", id)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range digests {
		if _, ok := s.blobs[d]; ok {
			delete(s.blobs, d)
			m.release(d)
		}
	}
	return nil
}

// release removes a blob from one session. The caller holds mu.
func (m *Memory) release(d Digest) {
	b := m.blobs[d]
	if b.sessions--; b.sessions == 0 {
		delete(m.blobs, d)
	}
}
