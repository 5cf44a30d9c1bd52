package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/watch"
)

// Open implements primitives.Files.
func (s *Sandbox) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	end, err := s.begin("open", name)
	if err != nil {
		return nil, err
	}
	defer end()
	return s.files.Open(ctx, name)
}

// WriteFile implements primitives.Files.
func (s *Sandbox) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	return s.runUnlocked("write", name, func() error { return s.files.WriteFile(ctx, name, r, opts) })
}

// runUnlocked runs do, which reads from the caller and may take long. Terminate and Close do not wait
// for do: they make it fail.
func (s *Sandbox) runUnlocked(op, target string, do func() error) error {
	end, err := s.begin(op, target)
	if err != nil {
		return err
	}
	end()
	err = do()
	if err == nil {
		return nil
	}
	if why := s.checkUsable(); why != nil {
		return s.fail(op, target, why) // more useful than err
	}
	return err
}

// WriteFiles implements primitives.BatchWriter.
func (s *Sandbox) WriteFiles(ctx context.Context, batch []primitives.File) ([]error, error) {
	end, err := s.begin("write", "")
	if err != nil {
		return nil, err
	}
	defer end()
	return s.files.WriteFiles(ctx, batch)
}

// WriteFilesSeq is like WriteFiles for files that become known one after another, as a guest
// receives them. It has read a file's content when it takes the next file. The returned slice has
// one entry per file taken.
func (s *Sandbox) WriteFilesSeq(ctx context.Context, batch iter.Seq[primitives.File]) (errs []error, err error) {
	end, err := s.begin("write", "")
	if err != nil {
		return nil, err
	}
	end() // as in runUnlocked
	errs, err = s.files.WriteFilesSeq(ctx, batch)
	if why := s.checkUsable(); why != nil && errors.Join(append([]error{err}, errs...)...) != nil {
		err = s.fail("write", "", why)
	}
	return errs, err
}

// Stat implements primitives.Files.
func (s *Sandbox) Stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	end, err := s.begin("stat", name)
	if err != nil {
		return primitives.FileInfo{}, err
	}
	defer end()
	return s.files.Stat(ctx, name)
}

// List implements primitives.Files.
func (s *Sandbox) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	end, err := s.begin("list", dir)
	if err != nil {
		return nil, err
	}
	defer end()
	return s.files.List(ctx, dir, opts)
}

// Mkdir implements primitives.Files.
func (s *Sandbox) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	end, err := s.begin("mkdir", name)
	if err != nil {
		return err
	}
	defer end()
	return s.files.Mkdir(ctx, name, mode)
}

// Remove implements primitives.Files.
func (s *Sandbox) Remove(ctx context.Context, name string, recursive bool) error {
	end, err := s.begin("remove", name)
	if err != nil {
		return err
	}
	defer end()
	return s.files.Remove(ctx, name, recursive)
}

// Move implements primitives.Files.
func (s *Sandbox) Move(ctx context.Context, from, to string) error {
	end, err := s.begin("move", from)
	if err != nil {
		return err
	}
	defer end()
	return s.files.Move(ctx, from, to)
}

// Pack implements primitives.Packer.
func (s *Sandbox) Pack(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
	end, err := s.begin("pack", dir)
	if err != nil {
		return nil, err
	}
	defer end()
	return s.files.Pack(ctx, dir, opts)
}

// Unpack implements primitives.Unpacker.
func (s *Sandbox) Unpack(ctx context.Context, dir string, r io.Reader) error {
	return s.runUnlocked("unpack", dir, func() error { return s.files.Unpack(ctx, dir, r) })
}

// Watch implements primitives.EnvironmentPrimitive.
func (s *Sandbox) Watch(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
	end, err := s.begin("watch", dir)
	if err != nil {
		return nil, err
	}
	defer end()
	abs, err := s.files.Resolve(dir)
	if err != nil {
		return nil, s.fail("watch", dir, unwrapError(err))
	}
	return watch.Watch(ctx, watch.Config{
		Backend: s.backend, Dir: abs, Name: dir, Options: opts, Done: s.down, Err: s.checkUsable,
	})
}

// checkUsable returns why the sandbox or this handle has ended, or nil.
func (s *Sandbox) checkUsable() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.checkUsableLocked()
}
