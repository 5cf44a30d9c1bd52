package gateway

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

const (
	// maxHeld is how many bytes of calls the gateways of this program hold at once, until the
	// answers begin.
	maxHeld = 3 * maxBody
	// quickBody is the size of a call that is read within some milliseconds.
	quickBody = 1 << 20
	// shareTimeout is how long a call waits for its share.
	shareTimeout = time.Minute
)

// errBusy is a call that has got no memory in time.
var errBusy = errors.New("the gateways of this program hold too many calls; try again")

// sharing divides memory and processors among gateways, so that no session can starve another.
type sharing struct {
	size    int64
	reading chan struct{} // one for each large call that is being read

	mu    sync.Mutex
	held  int64
	freed chan struct{} // closed and replaced when memory is freed
}

// program is what the gateways of this program share.
var program = newSharing(maxHeld)

func newSharing(size int64) *sharing {
	return &sharing{size: size, reading: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1)), freed: make(chan struct{})}
}

// share is the share of one gateway.
type share struct {
	of      *sharing
	own     int64         // bytes that this gateway holds; guarded by of.mu
	waiting chan struct{} // one while a call waits for memory
	reading chan struct{} // one while a large call is being read
}

func (s *sharing) newShare() *share {
	return &share{of: s, waiting: make(chan struct{}, 1), reading: make(chan struct{}, 1)}
}

// acquire waits for n bytes. A gateway gets them only if as many as it then holds stay free. So
// one gateway gets at most half, and however many others hold all that they can get, a part is
// left for the next. Of each gateway one call at a time competes for what is freed.
func (s *share) acquire(ctx context.Context, n int64) (release func(), err error) {
	free := sync.OnceFunc(func() { s.release(n) })
	if _, ok := s.tryAcquire(n); ok {
		return free, nil
	}
	timeout := time.NewTimer(shareTimeout)
	defer timeout.Stop()
	wait := func(freed <-chan struct{}, turn chan<- struct{}) error {
		select {
		case <-freed:
			return nil
		case turn <- struct{}{}:
			return nil
		case <-timeout.C:
			return errBusy
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := wait(nil, s.waiting); err != nil {
		return nil, err
	}
	defer func() { <-s.waiting }()
	for {
		freed, ok := s.tryAcquire(n)
		if ok {
			return free, nil
		}
		if err := wait(freed, nil); err != nil {
			return nil, err
		}
	}
}

// tryAcquire is like acquire, but instead of waiting returns a channel that is closed when memory
// is freed.
func (s *share) tryAcquire(n int64) (freed <-chan struct{}, ok bool) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.own+n > s.of.size-s.of.held-n {
		return s.of.freed, false
	}
	s.own, s.of.held = s.own+n, s.of.held+n
	return nil, true
}

func (s *share) release(n int64) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.own, s.of.held = s.own-n, s.of.held-n
	close(s.of.freed)
	s.of.freed = make(chan struct{})
}

// read calls f, which reads a call of the given size. A gateway reads one large call at a time,
// and waits for its turn among the gateways.
func (s *share) read(ctx context.Context, size int, f func(context.Context) error) error {
	if size <= quickBody {
		return f(ctx)
	}
	for _, turns := range []chan struct{}{s.reading, s.of.reading} {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return f(ctx)
}
