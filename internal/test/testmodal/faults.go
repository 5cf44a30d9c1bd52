package testmodal

import (
	"context"
	"maps"
	"path"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults counts the calls and injects the faults that a test requests.
type faults struct {
	mu     sync.Mutex
	calls  map[string]int
	fail   map[string][]error
	before func(method string) error
	lose   map[string]int
	lost   map[string]any // answers, by the keys of their calls
	drop   chan struct{}  // closed to end all open streams
	delay  time.Duration  // before each message of a stream
	quota  int            // of sandboxes; 0 means none
}

func newFaults() *faults {
	return &faults{
		calls: map[string]int{}, fail: map[string][]error{}, lose: map[string]int{}, lost: map[string]any{}, drop: make(chan struct{}),
	}
}

// Calls returns how often a method was called, by its short name ("TaskExecStart"), including
// calls that were made to fail.
func (s *Server) Calls(method string) int { return s.CallCounts()[method] }

// CallCounts returns how often each method was called, by its short name.
func (s *Server) CallCounts() map[string]int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return maps.Clone(s.faults.calls)
}

// Fail makes the next calls of a method fail with a code and without an effect.
func (s *Server) Fail(method string, code codes.Code, times int) {
	s.FailWith(method, status.Errorf(code, "%s was made to fail by the test", method), times)
}

// FailWith is like Fail, with any error.
func (s *Server) FailWith(method string, err error, times int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for range times {
		s.faults.fail[method] = append(s.faults.fail[method], err)
	}
}

// LoseAnswers executes the next calls of a method but drops their answers, as a network failure
// does. If a client repeats a call of the control plane with the same key, it gets the lost
// answer and the call has no further effect. The SDK relies on that.
func (s *Server) LoseAnswers(method string, times int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.lose[method] += times
}

// loses reports whether to lose the answer of this call.
func (f *faults) loses(method, key string, answer any) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lose[method] == 0 {
		return false
	}
	f.lose[method]--
	if key != "" {
		f.lost[key] = answer
	}
	return true
}

// lostAnswer returns the lost answer of a call with this key, or nil.
func (f *faults) lostAnswer(key string) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost[key]
}

// Throttle makes the next calls of a method fail with a rate limit. The error asks the client
// to retry after the given time.
func (s *Server) Throttle(method string, after time.Duration, times int) error {
	st, err := status.New(codes.ResourceExhausted, "rate limit exceeded").
		WithDetails(pb.RPCRetryPolicy_builder{RetryAfterSecs: float32(after.Seconds())}.Build())
	if err != nil {
		return err
	}
	s.FailWith(method, st.Err(), times)
	return nil
}

// SetQuota limits how many sandboxes may run at a time. Further ones are refused as
// ResourceExhausted. 0 means no limit.
func (s *Server) SetQuota(sandboxes int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.quota = sandboxes
}

// sandboxes returns the quota.
func (f *faults) sandboxes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.quota
}

// Before calls f with the short name at the start of every call. If f returns an error, the
// call fails with it. Nil disables it.
func (s *Server) Before(f func(method string) error) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.before = f
}

// DropStreams breaks all open streams with Unavailable, as a network failure does.
func (s *Server) DropStreams() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	close(s.faults.drop)
	s.faults.drop = make(chan struct{})
}

// SlowStreams delays each message that streams send from now on.
func (s *Server) SlowStreams(delay time.Duration) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.delay = delay
}

// begin counts a call and returns the error to fail it with.
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
	key := header(ctx, "x-idempotency-key")
	if answer := s.faults.lostAnswer(key); answer != nil {
		return answer, nil
	}
	method := path.Base(info.FullMethod)
	answer, err := handler(ctx, req)
	if err == nil && s.faults.loses(method, key, answer) {
		return nil, status.Errorf(codes.Unavailable, "the answer of %s was lost by the test", method)
	}
	return answer, err
}

// stream runs a stream's handler, until streams are dropped.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	s.faults.mu.Lock()
	drop := s.faults.drop // before begin counts the call that a test waits for
	s.faults.mu.Unlock()
	if err := s.faults.begin(path.Base(info.FullMethod)); err != nil {
		return err
	}
	if err := s.tokens.check(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	ended := make(chan error, 1)
	s.running.Go(func() {
		defer close(ended)
		ended <- handler(srv, &faultyStream{ServerStream: ss, ctx: ctx, drop: drop, faults: s.faults})
	})
	dropped := errDropped
	select {
	case err := <-ended:
		return err
	case <-s.ctx.Done():
		dropped = status.Error(codes.Unavailable, "the server ends")
	case <-drop:
	}
	cancel()
	if !info.IsClientStream { // client streams wait for this function to return
		for range ended { // wait for the handler, whose context is done
		}
	}
	return dropped
}

var errDropped = status.Error(codes.Unavailable, "the stream was dropped by the test")

// faultyStream is a stream into which a test can inject faults.
type faultyStream struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // as the interface has it
	drop   <-chan struct{}
	faults *faults
}

func (s *faultyStream) Context() context.Context { return s.ctx }

// SendMsg sends a message after the delay, if there is one. After DropStreams it sends no further one, even if the stream has
// not ended yet.
func (s *faultyStream) SendMsg(m any) error {
	s.faults.mu.Lock()
	delay := s.faults.delay
	s.faults.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.ctx.Done():
		}
	}
	select {
	case <-s.drop:
		return errDropped
	case <-s.ctx.Done():
		return s.ctx.Err()
	default:
	}
	return s.ServerStream.SendMsg(m)
}
