package guest

import (
	"context"
	"fmt"
	"io"
	"time"
)

// located is an open file of a sandbox that can say where it is, unless it is smaller
// than minSize or in another mounted file system than all of the paths given.
type located interface {
	io.ReadSeekCloser
	Locate(minSize int64, mounts []string) (name string, size int64, modTime time.Time, ok bool)
}

// fetch is open for a host that can read large files in another way. It tells where
// such a file is and then sends what the host still wants of it.
func (s *server) fetch(ctx context.Context, op *operation) error {
	var req fetchRequest
	if err := op.request(&req); err != nil {
		return err
	}
	r, err := s.p.Open(ctx, req.Path)
	if err != nil {
		return err
	}
	if file, ok := r.(located); ok {
		if name, size, modTime, ok := file.Locate(req.MinSize, req.Mounts); ok {
			err := op.refer(file, &fetchReply{name, size, modTime})
			if err != nil {
				_ = r.Close() // nothing was read
				return err
			}
			return op.abandonable(func() error { return op.content(r) })
		}
	}
	op.queue(appendFrame(nil, frameReply, encode(&fetchReply{})))
	return op.abandonable(func() error { return op.content(r) })
}

// refer tells the host where a file is, and goes to what it still wants.
func (op *operation) refer(file io.Seeker, where *fetchReply) error {
	if err := op.sendMessage(frameReply, where); err != nil {
		return err
	}
	kind, payload, err := op.readMessage(maxLook)
	if err != nil {
		return err
	}
	var rest fetchRest
	if kind != frameItem || decode(payload, &rest) != nil || rest.Offset < 0 {
		return invalid(unexpected(kind))
	}
	_, err = file.Seek(rest.Offset, io.SeekStart)
	return err
}

// maxLook is the longest message of a host that asks about a staged file.
const maxLook = 64

// place is write for a host that can put files into a folder in another way.
func (s *server) place(ctx context.Context, op *operation) error {
	var req writeRequest
	if err := op.request(&req); err != nil {
		return err
	}
	if err := s.p.WriteFile(ctx, req.Path, &staging{upload: op.upload()}, req.Opts); err != nil {
		return err
	}
	return op.reply(&empty{})
}

// staging is what such a host sends. The sandbox may call Stage and then Read, or
// only Read.
type staging struct {
	*upload
	offered bool
}

// offer tells the host where to put the file.
func (s *staging) offer(to *stageReply) error {
	s.offered = true
	if err := s.op.sendMessage(frameReply, to); err != nil {
		s.op.cancel()
		return streamError(err)
	}
	return nil
}

// Read reads what comes over the stream.
func (s *staging) Read(p []byte) (int, error) {
	if !s.offered {
		if err := s.offer(&stageReply{}); err != nil {
			return 0, err
		}
	}
	return s.upload.Read(p)
}

// Stage has the host put a file into dir. look reports whether a file of some size has
// arrived there; when Stage returns true, the last one that it was asked for has.
func (s *staging) Stage(dir, name string, uid, gid int, look func(size int64) bool) (bool, error) {
	if err := s.offer(&stageReply{dir, name, uid, gid}); err != nil {
		return false, err
	}
	for {
		req, err := s.nextLook()
		if err != nil {
			s.op.cancel()
			return false, err
		}
		found := req.Size > 0 && look(req.Size)
		if err := s.op.sendMessage(frameReply, &lookReply{found}); err != nil {
			s.op.cancel()
			return false, streamError(err)
		}
		if req.Last {
			return found, nil
		}
	}
}

func (s *staging) nextLook() (lookRequest, error) {
	var req lookRequest
	kind, payload, err := s.op.readMessage(maxLook)
	switch {
	case err != nil:
		return req, err
	case kind != frameItem:
		return req, invalid(unexpected(kind))
	}
	if err := decode(payload, &req); err != nil {
		return req, invalid(fmt.Errorf("%w: %w", errProtocol, err))
	}
	return req, nil
}
