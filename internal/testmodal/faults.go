package testmodal

import (
	"context"
	"maps"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults counts the calls and breaks those that a test wants broken.
type faults struct {
	mu     sync.Mutex
	calls  map[string]int
	fail   map[string][]error
	before func(method string) error
	drop   chan struct{} // closed to end the streams that are open
}

func newFaults() *faults {
	return &faults{calls: map[string]int{}, fail: map[string][]error{}, drop: make(chan struct{})}
}

// Calls is how often a method was called, by its short name ("TaskExecStart"); what
// was made to fail counts, too.
func (s *Server) Calls(method string) int { return s.CallCounts()[method] }

// CallCounts is how often each method was called, by its short name.
func (s *Server) CallCounts() map[string]int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return maps.Clone(s.faults.calls)
}

// Fail makes the next calls of a method fail with a code, before anything is done.
func (s *Server) Fail(method string, code codes.Code, times int) {
	s.FailWith(method, status.Errorf(code, "%s was made to fail by the test", method), times)
}

// FailWith is Fail with an error of the test's own.
func (s *Server) FailWith(method string, err error, times int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for range times {
		s.faults.fail[method] = append(s.faults.fail[method], err)
	}
}

// Before calls f at the begin of every call, with its short name, and fails the
// call with the error that f returns. Nil ends it.
func (s *Server) Before(f func(method string) error) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.before = f
}

// DropStreams breaks every stream that is open now, as a network would that is cut:
// with Unavailable.
func (s *Server) DropStreams() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	close(s.faults.drop)
	s.faults.drop = make(chan struct{})
}

// begin notes a call and returns the error that it shall fail with.
func (f *faults) begin(method string) error {
	f.mu.Lock()
	f.calls[method]++
	before := f.before
	var err error
	if queue := f.fail[method]; len(queue) > 0 {
		err, f.fail[method] = queue[0], queue[1:]
	}
	f.mu.Unlock()
	if err == nil && before != nil {
		err = before(method)
	}
	return err
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.faults.begin(path.Base(info.FullMethod)); err != nil {
		return nil, err
	}
	if err := s.tokens.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// stream runs a stream's handler, whose context ends when streams are dropped.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := s.faults.begin(path.Base(info.FullMethod)); err != nil {
		return err
	}
	if err := s.tokens.check(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	s.faults.mu.Lock()
	drop := s.faults.drop
	s.faults.mu.Unlock()
	ended := make(chan error, 1)
	s.running.Go(func() { ended <- handler(srv, ss) })
	select {
	case err := <-ended:
		return err
	case <-drop:
		return status.Error(codes.Unavailable, "the stream was dropped by the test")
	}
}
