package primitivestest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
)

// writeEndingRules returns the rules that a write ends with its sandbox, whatever its reader
// does.
func writeEndingRules() []rule {
	return []rule{
		{name: "what is being written when the sandbox is terminated is ErrTerminated", own: true, check: func(t testingT, s *sandbox) {
			s.endWrites(t, primitives.ErrTerminated, []bool{true, false}, func(ctx context.Context) error {
				_, err := s.Terminate(ctx)
				return err
			})
		}},
		{name: "what is being written when the handle is closed is ErrUnavailable", own: true, check: func(t testingT, s *sandbox) {
			s.endWrites(t, primitives.ErrUnavailable, []bool{true, false}, func(context.Context) error { return s.Close() })
		}},
		{
			name: "what is being written when the sandbox dies is ErrUnavailable", own: true,
			possible: func(h Harness) bool { return h.Destroy != nil },
			check: func(t testingT, s *sandbox) {
				// A stuck reader need not get the error.
				s.endWrites(t, primitives.ErrUnavailable, []bool{false}, func(ctx context.Context) error {
					return s.suite.h.Destroy(ctx, s.EnvironmentPrimitive)
				})
			},
		},
	}
}

// endWrites starts writes, with readers that are stuck or continue, ends the sandbox, and
// expects the writes to return want.
func (s *sandbox) endWrites(t testingT, want error, readers []bool, end func(ctx context.Context) error) {
	t.Helper()
	var begin bytes.Buffer
	if err := tar.NewWriter(&begin).WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 1 << 40}); err != nil {
		t.Fatalf("making an archive: %v", err)
	}
	over := make(chan struct{})
	defer close(over)
	type ended struct {
		what string
		err  error
	}
	results := make(chan ended)
	writes := 0
	for _, stuck := range readers {
		for what, write := range map[string]func(r io.Reader) error{
			"WriteFile": func(r io.Reader) error {
				return s.WriteFile(context.WithoutCancel(t.Context()), s.in("written"), r, primitives.WriteOptions{})
			},
			"Unpack": func(r io.Reader) error {
				return primitives.Unpack(context.WithoutCancel(t.Context()), s.EnvironmentPrimitive, s.in("unpacked"), io.MultiReader(bytes.NewReader(begin.Bytes()), r))
			},
		} {
			if stuck {
				what += " with a reader that is stuck"
			}
			r := &endless{stuck: stuck, begun: make(chan struct{}), over: over}
			s.suite.strays.Go(func() {
				result := ended{what, write(r)}
				select {
				case results <- result:
				case <-over:
				}
			})
			s.within(t, what, func() error { <-r.begun; return nil })
			writes++
		}
	}
	s.within(t, "the end", func() error { return end(context.WithoutCancel(t.Context())) })
	for range writes {
		var result ended
		s.within(t, "all writes to end", func() error {
			select {
			case result = <-results:
			case <-over:
			}
			return nil
		})
		expectError(t, result.what, result.err, want)
	}
}

// endless is a reader that never ends.
type endless struct {
	stuck bool // after the beginning
	begun chan struct{}
	over  <-chan struct{}

	once sync.Once
	read int
}

var errReader = errors.New("primitivestest: the case is over")

// beginning is how many bytes an endless reader returns without delay: enough for a sandbox to
// start writing.
const beginning = 256 << 10

// Read implements io.Reader. After the beginning it returns little at a time.
func (e *endless) Read(p []byte) (int, error) {
	if e.read >= beginning {
		e.once.Do(func() { close(e.begun) })
		if e.stuck {
			<-e.over
		}
		p = p[:min(len(p), 64)]
	}
	select {
	case <-e.over:
		return 0, errReader
	default:
	}
	for i := range p {
		p[i] = 'x'
	}
	e.read += len(p)
	return len(p), nil
}
