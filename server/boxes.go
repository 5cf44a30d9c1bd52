package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// defaultGrace is how long a sandbox lives without a client, if its client did not say.
const defaultGrace = 30 * time.Second

// boxes are the sandboxes that clients use. A sandbox that a client has made stays open without clients for its grace period,
// and then ends, unless it is kept.
type boxes struct {
	log hclog.Logger

	mu     sync.Mutex
	closed bool
	known  map[boxID]*box
	work   sync.WaitGroup // clients, and the ends of sandboxes
}

// boxID names a sandbox on the server.
type boxID struct{ typ, id string }

// box is one sandbox. The mutex of boxes guards it.
type box struct {
	boxID
	opening sync.Mutex // held while the sandbox is attached to; lock it without the other one

	sandbox primitives.EnvironmentPrimitive // nil if it is not open
	made    bool                            // a client has made it
	kept    bool                            // it outlives its clients
	met     bool                            // a client has been connected: only then does anybody know a kept one
	ended   bool                            // it was ended
	creator string
	grace   time.Duration
	clients int
	timer   *time.Timer // ends the time without a client; nil if there is one
}

// errStopping is the error of sandboxes while the server stops.
var errStopping = fmt.Errorf("%w: the server stops; connect again later", primitives.ErrUnavailable)

// add records a sandbox that was made for a client.
func (b *boxes) add(ctx context.Context, id boxID, sandbox primitives.EnvironmentPrimitive, spec primitives.Spec, creator string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errStopping
	}
	if b.known == nil {
		b.known = make(map[boxID]*box)
	}
	x := &box{boxID: id, sandbox: sandbox, made: true, kept: spec.Keep, creator: creator, grace: cmp.Or(spec.Grace, defaultGrace)}
	b.known[id] = x
	b.wait(ctx, x)
	return nil
}

// use returns an open sandbox for a client, which calls release at its end. attach opens it if it is not open. meets says that the
// client works in it.
func (b *boxes) use(ctx context.Context, id boxID, meets bool, attach func() (primitives.EnvironmentPrimitive, error)) (s primitives.EnvironmentPrimitive, release func(), err error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, nil, errStopping
	}
	x := b.known[id]
	if x == nil {
		x = &box{boxID: id, grace: defaultGrace}
		if b.known == nil {
			b.known = make(map[boxID]*box)
		}
		b.known[id] = x
	}
	b.enter(x)
	b.mu.Unlock()
	release = sync.OnceFunc(func() { b.release(ctx, x) })
	if s, err = b.opened(x, meets, attach); err != nil {
		release()
		return nil, nil, err
	}
	return s, release, nil
}

// enter counts a client. Call it with the mutex.
func (b *boxes) enter(x *box) {
	x.clients++
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	b.work.Add(1)
}

// opened returns the sandbox of a box, which has a client.
func (b *boxes) opened(x *box, meets bool, attach func() (primitives.EnvironmentPrimitive, error)) (primitives.EnvironmentPrimitive, error) {
	x.opening.Lock()
	defer x.opening.Unlock()
	b.mu.Lock()
	s := x.sandbox
	b.mu.Unlock()
	var err error
	if s == nil {
		s, err = attach()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		x.sandbox, x.met = s, x.met || meets
	}
	return s, err
}

// release ends the use of a sandbox by a client.
func (b *boxes) release(ctx context.Context, x *box) {
	defer b.work.Done()
	b.mu.Lock()
	x.clients--
	last := x.clients == 0
	left := x.sandbox
	switch {
	case !last:
		left = nil
	case x.ended || b.closed: // end or close did not close it under a client
		x.sandbox = nil
	case left == nil: // it could not be attached to
		b.forget(x)
	default:
		b.wait(ctx, x)
		left = nil
	}
	ends := b.closed && x.outlived()
	b.mu.Unlock()
	if left != nil {
		b.finish(ctx, x.boxID, left, ends)
	}
}

// outlived reports whether the sandbox ends with its clients.
func (x *box) outlived() bool { return x.made && !x.ended && (!x.kept || !x.met) }

// forget removes what is known of a box, unless that is more than its sandbox knows. Call it with the mutex.
func (b *boxes) forget(x *box) {
	if b.known[x.boxID] == x && (!x.made || x.outlived() || x.ended) {
		delete(b.known, x.boxID)
	}
}

// wait begins the time without a client. Call it with the mutex.
func (b *boxes) wait(ctx context.Context, x *box) {
	ctx = context.WithoutCancel(ctx)
	grace := x.grace
	if !x.met {
		grace = max(grace, defaultGrace) // its client is about to connect
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
	s, ends := x.sandbox, x.outlived()
	x.sandbox = nil
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	b.forget(x)
	b.work.Add(1)
	defer b.work.Done()
	b.mu.Unlock()
	if s != nil {
		b.finish(ctx, x.boxID, s, ends)
	}
}

// finish closes a sandbox, and terminates it if ends.
func (b *boxes) finish(ctx context.Context, id boxID, s primitives.EnvironmentPrimitive, ends bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
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

// end ends a sandbox that is open. ok is false if it is not.
func (b *boxes) end(ctx context.Context, id boxID) (ok bool, err error) {
	b.mu.Lock()
	x := b.known[id]
	if x == nil || x.sandbox == nil || b.closed {
		if x != nil && x.clients == 0 {
			delete(b.known, id)
		}
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
	b.forget(x)
	b.mu.Unlock()
	return !gone, nil
}

// has reports whether a sandbox of this ID is known.
func (b *boxes) has(id boxID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known[id] != nil
}

// creator returns the program that has made a sandbox, as its client said.
func (b *boxes) creator(id boxID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.known[id]; x != nil {
		return x.creator
	}
	return ""
}

// orphans returns the sandboxes of a type that wait without a client and do not outlive them, and ends them if end.
func (b *boxes) orphans(ctx context.Context, typ string, end bool) (ids []string) {
	b.mu.Lock()
	var found []*box
	for id, x := range b.known {
		if id.typ == typ && x.clients == 0 && x.sandbox != nil && x.outlived() {
			found = append(found, x)
		}
	}
	b.mu.Unlock()
	for _, x := range found {
		b.mu.Lock()
		if b.closed || x.clients > 0 || x.sandbox == nil {
			b.mu.Unlock()
			continue
		}
		ids = append(ids, x.id)
		if !end {
			b.mu.Unlock()
			continue
		}
		b.expire(ctx, x)
	}
	return ids
}

// stop closes all sandboxes, after their clients have gone, and ends those that do not outlive the clients.
func (b *boxes) stop(ctx context.Context) {
	b.mu.Lock()
	b.closed = true
	var idle []*box
	for _, x := range b.known {
		if x.clients == 0 && x.sandbox != nil {
			idle = append(idle, x)
		}
	}
	b.mu.Unlock()
	for _, x := range idle {
		b.mu.Lock()
		b.expire(ctx, x)
	}
	b.work.Wait()
}
