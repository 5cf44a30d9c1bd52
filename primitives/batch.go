package primitives

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
)

// ReadFile reads a whole file of up to limit bytes. A longer one returns its
// first limit bytes and [ErrLimit]. A limit of zero means [DefaultMaxRead].
func ReadFile(ctx context.Context, f Files, name string, limit int64) ([]byte, error) {
	if limit == 0 {
		limit = DefaultMaxRead
	}
	r, err := f.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(r, limit+1))
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	if err == nil && n > limit {
		buf.Truncate(int(limit))
		err = &Error{Op: "read", Target: name, Err: fmt.Errorf("%w: the file is larger than %d bytes; read it with Open", ErrLimit, limit)}
	}
	return buf.Bytes(), err
}

// DefaultMaxRead is how much ReadFile reads: 100 MiB.
const DefaultMaxRead = 100 << 20

// File is one file of a batch.
type File struct {
	Path    string      `json:"path"`
	Content []byte      `json:"content"`
	Mode    fs.FileMode `json:"mode,omitempty"` // as in WriteOptions
}

// BatchWriter is implemented by primitives that write many files in one round
// trip. Call [WriteFiles].
type BatchWriter interface {
	// WriteFiles does what the function [WriteFiles] promises.
	WriteFiles(ctx context.Context, files []File) ([]error, error)
}

// WriteFiles writes many files, each as Files.WriteFile would. The slice has one entry per
// file, nil for those that were written. A file that fails does not stop the others. The error
// reports a failure that concerns all files. A missing directory may appear only together with
// all of its files that follow each other in files; if the sandbox or its guest dies before
// that, they are lost.
func WriteFiles(ctx context.Context, f Files, files []File) ([]error, error) {
	if b, ok := f.(BatchWriter); ok {
		return b.WriteFiles(ctx, files)
	}
	errs := make([]error, len(files))
	for i, file := range files {
		if err := ctx.Err(); err != nil {
			return errs, err
		}
		errs[i] = f.WriteFile(ctx, file.Path, bytes.NewReader(file.Content), WriteOptions{Mode: file.Mode})
	}
	return errs, nil
}
