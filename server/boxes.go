package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	// defaultGrace is how long a sandbox lives without a client, if its client did not say; also how long a client may take to
	// connect to a new one.
	defaultGrace = 30 * time.Second
	// endTimeout is how long the end of a sandbox without clients may take, and of all when the server stops.
	endTimeout = time.Minute
)

// boxes are the sandboxes that clients use. A sandbox that a client has made stays open without clients for its grace period,
// and then ends, unless it is kept.
type boxes struct {
	log     hclog.Logger
	connect time.Duration // how long a client may take to connect; tests shorten it

	mu     sync.Mutex
	closed bool
	known  map[boxID]*box
	work   sync.WaitGroup // clients, and beginnings and ends of sandboxes
}

// boxID names a sandbox on the server.
type boxID struct{ typ, id string }

// box is one sandbox. The mutex of boxes guards what changes.
type box struct {
	boxID
	provider primitives.Provider // with the settings that it was made with
	made     bool                // a client has made it
	kept     bool                // it outlives its clients
	creator  string              // the program that asked for it, as it said
	owner    string              // the caller that asked for it
	grace    time.Duration

	opening sync.Mutex                      // held while the sandbox is attached to; lock it without the other one
	sandbox primitives.EnvironmentPrimitive // nil if it is not open
	met     bool                            // a client has worked in it: only then does anybody know a kept one
	ended   bool                            // it was ended
	clients int
	timer   *time.Timer // ends the time without a client; nil if there is one
}

// errStopping is the error of sandboxes while the server stops.
var errStopping = fmt.Errorf("%w: the server stops; connect again later", primitives.ErrUnavailable)

// begin begins work that a stop waits for, until done is called.
func (b *boxes) begin() (done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errStopping
	}
	b.work.Add(1)
	return b.work.Done, nil
}

// add records a sandbox that was made for a client. Call it between begin and done.
func (b *boxes) add(ctx context.Context, x *box) {
	x.made, x.grace = true, cmp.Or(x.grace, defaultGrace)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.known = make(map[boxID]*box)
	}
	b.known[x.boxID] = x
	if !b.closed { // else the caller ends it
		b.wait(ctx, x)
	}
}

// use opens a sandbox for a client, which calls release at its end. provider finds it if nothing is known of it.
func (b *boxes) use(ctx context.Context, id boxID, provider primitives.Provider) (s primitives.EnvironmentPrimitive, release func(), err error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, nil, errStopping
	}
	x := b.known[id]
	if x == nil {
		x = &box{boxID: id, provider: provider, grace: defaultGrace}
		if b.known == nil {
			b.known = make(map[boxID]*box)
		}
		b.known[id] = x
	}
	b.enter(x)
	b.mu.Unlock()
	release = sync.OnceFunc(func() { b.release(ctx, x) })
	if s, err = b.open(ctx, x); err != nil {
		release()
		return nil, nil, err
	}
	return s, release, nil
}

// enter counts a client. Call it with the mutex.
func (b *boxes) enter(x *box) {
	x.clients++
	x.stopTimer()
	b.work.Add(1)
}

func (x *box) stopTimer() {
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
}

// open returns the sandbox of a box, which has a client. A handle that has lost its sandbox is replaced.
func (b *boxes) open(ctx context.Context, x *box) (primitives.EnvironmentPrimitive, error) {
	x.opening.Lock()
	defer x.opening.Unlock()
	b.mu.Lock()
	s := x.sandbox
	b.mu.Unlock()
	if s != nil {
		state, err := s.Poll(ctx)
		switch {
		case err != nil:
			return nil, err
		case state.Status == primitives.StatusTerminated:
			return nil, primitives.ErrTerminated
		case state.Status != primitives.StatusLost:
			return s, nil
		}
		if err := s.Close(); err != nil {
			b.log.Debug("a lost handle was closed", "type", x.typ, "sandbox", x.id, "error", err)
		}
	}
	s, err := x.provider.Attach(ctx, x.id)
	if err != nil {
		s = nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	x.sandbox = s
	x.ended = x.ended || errors.Is(err, fs.ErrNotExist) || errors.Is(err, primitives.ErrTerminated)
	return s, err
}

// meet notes that a client works in a sandbox.
func (b *boxes) meet(id boxID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.known[id]; x != nil {
		x.met = true
	}
}

// release ends the use of a sandbox by a client.
func (b *boxes) release(ctx context.Context, x *box) {
	defer b.work.Done()
	b.mu.Lock()
	x.clients--
	switch {
	case x.clients > 0:
		b.mu.Unlock()
	case x.ended || b.closed || x.sandbox == nil: // nothing is waited for
		b.expire(ctx, x)
	default:
		b.wait(ctx, x)
		b.mu.Unlock()
	}
}

// ends reports whether the sandbox ends with its clients.
func (x *box) ends() bool { return x.made && !x.ended && (!x.kept || !x.met) }

// wait begins the time without a client. Call it with the mutex.
func (b *boxes) wait(ctx context.Context, x *box) {
	ctx = context.WithoutCancel(ctx)
	grace := x.grace
	if x.made && !x.met {
		grace = max(grace, b.connect)
	}
	var timer *time.Timer
	timer = time.AfterFunc(grace, func() {
		b.mu.Lock()
		if b.closed || x.timer != timer {
			b.mu.Unlock()
			return
		}
		b.expire(ctx, x)
	})
	x.timer = timer
}

// expire closes a sandbox without clients, and ends it if it does not outlive them. Call it with the mutex, which it unlocks.
func (b *boxes) expire(ctx context.Context, x *box) {
	s, ends := x.sandbox, x.ends()
	x.sandbox = nil
	x.stopTimer()
	if b.known[x.boxID] == x && (!x.made || ends || x.ended) { // of a kept one more is known than it knows itself
		delete(b.known, x.boxID)
	}
	b.work.Add(1)
	defer b.work.Done()
	b.mu.Unlock()
	if s != nil {
		b.finish(ctx, x.boxID, s, ends)
	}
}

// finish closes a sandbox, and terminates it if ends.
func (b *boxes) finish(ctx context.Context, id boxID, s primitives.EnvironmentPrimitive, ends bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	var err error
	if ends {
		b.log.Info("a sandbox without clients ends", "type", id.typ, "sandbox", id.id)
		_, err = s.Terminate(ctx)
	}
	if err = errors.Join(err, s.Close()); err != nil {
		b.log.Warn("a sandbox could not be ended", "type", id.typ, "sandbox", id.id, "error", err)
	}
}

// end ends a sandbox that is open. ok is false if it is not, or was ended before.
func (b *boxes) end(ctx context.Context, id boxID) (ok bool, err error) {
	b.mu.Lock()
	x := b.known[id]
	if x == nil || x.sandbox == nil {
		b.mu.Unlock()
		return false, nil
	}
	s := x.sandbox
	b.enter(x) // so that it stays open meanwhile
	b.mu.Unlock()
	defer b.release(ctx, x)
	state, err := s.Poll(ctx)
	gone := err == nil && state.Status == primitives.StatusTerminated
	if _, err = s.Terminate(ctx); err != nil {
		return true, err
	}
	b.mu.Lock()
	x.ended = true
	delete(b.known, id)
	b.mu.Unlock()
	return !gone, nil
}

// forget removes what is known of a sandbox that is not open.
func (b *boxes) forget(id boxID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.known[id]; x != nil && x.sandbox == nil && x.clients == 0 {
		delete(b.known, id)
	}
}

// seen is what is known of a sandbox.
type seen struct {
	provider primitives.Provider
	sandbox  primitives.EnvironmentPrimitive // nil if it is not open
	creator  string
}

// look returns what is known of a sandbox that a caller may use: an admin any, others what they have made.
func (b *boxes) look(id boxID, caller Caller) (seen, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.known[id]
	if x == nil || caller.Role != RoleAdmin && (!x.made || x.owner != caller.Name) {
		return seen{}, false
	}
	return seen{x.provider, x.sandbox, x.creator}, true
}

// orphans returns the sandboxes of a type whose clients have gone and that do not outlive them, and ends them if end.
func (b *boxes) orphans(ctx context.Context, typ string, end bool) (ids []string) {
	is := func(x *box) bool { return x.clients == 0 && x.sandbox != nil && x.met && x.ends() }
	b.mu.Lock()
	var found []*box
	for id, x := range b.known {
		if id.typ == typ && is(x) {
			found = append(found, x)
		}
	}
	b.mu.Unlock()
	for _, x := range found {
		b.mu.Lock()
		if b.closed || !is(x) {
			b.mu.Unlock()
			continue
		}
		ids = append(ids, x.id)
		if end {
			b.expire(ctx, x)
		} else {
			b.mu.Unlock()
		}
	}
	return ids
}

// stop closes all sandboxes, after their clients have gone, and ends those that do not outlive the clients. It does not wait for
// ever.
func (b *boxes) stop(ctx context.Context) {
	b.mu.Lock()
	b.closed = true
	for _, x := range b.known {
		if x.clients > 0 || x.sandbox == nil {
			continue
		}
		b.work.Add(1)
		go func() {
			defer b.work.Done()
			b.mu.Lock()
			b.expire(ctx, x)
		}()
	}
	b.mu.Unlock()
	over := make(chan struct{})
	go func() { b.work.Wait(); close(over) }()
	timeout := time.NewTimer(endTimeout)
	defer timeout.Stop()
	select {
	case <-over:
	case <-timeout.C:
		b.log.Warn("sandboxes of clients did not end in time", "timeout", endTimeout)
	}
}
