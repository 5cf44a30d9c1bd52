package guest

import (
	"context"
	"errors"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
)

func (s *server) stat(ctx context.Context, op *operation) error {
	var req pathRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		info, err := s.p.Stat(ctx, req.Path)
		if err != nil {
			return err
		}
		return op.reply(&fileInfoReply{info})
	})
}

func (s *server) mkdir(ctx context.Context, op *operation) error {
	var req mkdirRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.confirm(func() error { return s.p.Mkdir(ctx, req.Path, req.Mode) })
}

func (s *server) remove(ctx context.Context, op *operation) error {
	var req removeRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.confirm(func() error { return s.p.Remove(ctx, req.Path, req.Recursive) })
}

func (s *server) move(ctx context.Context, op *operation) error {
	var req moveRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.confirm(func() error { return s.p.Move(ctx, req.From, req.To) })
}

// confirm answers with nothing when do has succeeded.
func (op *operation) confirm(do func() error) error {
	return op.abandonable(func() error {
		if err := do(); err != nil {
			return err
		}
		return op.reply(&empty{})
	})
}

func (s *server) open(ctx context.Context, op *operation) error {
	var req pathRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		r, err := s.p.Open(ctx, req.Path)
		return op.download(r, err)
	})
}

func (s *server) pack(ctx context.Context, op *operation) error {
	var req packRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		r, err := primitives.Pack(ctx, s.p, req.Dir, req.Opts)
		return op.download(r, err)
	})
}

// download answers with the content of r. The reply travels with the first data.
func (op *operation) download(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // what was read is what counts
	op.queue(appendHeader(nil, frameReply, 0))
	err = op.sendAll(r, op.claimPipe)
	if source, ok := errors.AsType[*sourceError](err); ok {
		return source.err
	}
	return nil // the host has gone
}

// upload is the data of the host. It fails if the host goes before the end, and
// the operation is then cancelled.
type upload struct {
	op   *operation
	data dataReader
}

func (op *operation) upload() *upload {
	u := &upload{op: op}
	u.data = dataReader{f: op.framer, onError: func(w *wireError) error { return fromWire(w, "") }}
	return u
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.data.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // dataReader ends with io.EOF itself
		u.op.cancel()
	}
	return n, err
}

// stopReading ends a Read that the sandbox has given up.
func (op *operation) stopReading() { _ = op.SetReadDeadline(past()) }

func (s *server) write(ctx context.Context, op *operation) error {
	var req writeRequest
	if err := op.request(&req); err != nil {
		return err
	}
	defer op.stopReading()
	if err := s.p.WriteFile(ctx, req.Path, op.upload(), req.Opts); err != nil {
		return err
	}
	return op.reply(&empty{})
}

func (s *server) unpack(ctx context.Context, op *operation) error {
	var req pathRequest
	if err := op.request(&req); err != nil {
		return err
	}
	defer op.stopReading()
	up := op.upload()
	if err := primitives.Unpack(ctx, s.p, req.Path, up); err != nil {
		return err
	}
	// A tar stream has an end of its own; what follows it is not needed, but
	// it must have been whole.
	if _, err := io.Copy(io.Discard, up); err != nil {
		return err
	}
	return op.reply(&empty{})
}

// listChunk is about how many bytes of entries go into one message.
const listChunk = 32 << 10

func (s *server) list(ctx context.Context, op *operation) error {
	var req listRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		infos, err := s.p.List(ctx, req.Dir, req.Opts)
		for len(infos) > 0 {
			n, size := 0, 0
			for n < len(infos) && size < listChunk {
				size += 64 + len(infos[n].Path) + len(infos[n].Target)
				n++
			}
			op.queue(appendFrame(nil, frameItem, encode(&listItem{infos[:n]})))
			infos = infos[n:]
			if len(infos) > 0 && op.send(nil) != nil {
				return nil // the host has gone
			}
		}
		if err != nil {
			return err
		}
		_ = op.send(appendHeader(nil, frameEnd, 0))
		return nil
	})
}

func (s *server) watch(ctx context.Context, op *operation) error {
	var req watchRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		events, err := s.p.Watch(ctx, req.Dir, req.Opts)
		if err != nil {
			return err
		}
		if err := op.sendMessage(frameReply, &empty{}); err != nil {
			return nil // the host has gone; the sequence was never begun and ends with ctx
		}
		for event, err := range events {
			if err != nil {
				return err
			}
			if len(event.Content) > maxEventContent {
				event.Content, event.Omitted = nil, primitives.OmittedTooLarge
			}
			if op.sendMessage(frameItem, &eventFrame{event}) != nil {
				return nil
			}
		}
		_ = op.send(appendHeader(nil, frameEnd, 0))
		return nil
	})
}
