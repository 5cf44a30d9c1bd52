package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/session/store"
)

// HostConfig says how a [Host] works. Only Store is required.
type HostConfig struct {
	Store store.Store
	// Session has the settings of opened sessions that their records cannot hold; see [Open].
	// It must not name an agent. Its Environment.PermissionLimits also hold for new sessions.
	Session Config
	// Idle closes a session that has had no reader and no query for this long. The session
	// stays in the store, and Open opens it again. Zero means never.
	Idle time.Duration
}

// Host keeps the sessions in use open, also those that are forked from them. The lease in the store
// ensures that a session belongs to one host. The methods may be called from several goroutines.
type Host struct {
	cfg  HostConfig
	stop chan struct{}
	done chan struct{} // closed when the goroutine that closes idle sessions has ended

	failed map[string]bool // sessions that TakeOver could not open; it alone uses them

	mu     sync.Mutex
	closed bool
	open   map[string]*hosted
}

// hosted is a session that is open or is being opened.
type hosted struct {
	ready   chan struct{} // closed when session and err are set
	session *AgentSession
	err     error
	uses    int // callers of Use that have not released it; guarded by Host.mu
}

// NewHost returns a host. The caller must end it with Shutdown.
func NewHost(cfg HostConfig) (*Host, error) {
	if cfg.Store == nil || cfg.Idle < 0 {
		return nil, fmt.Errorf("new host: %w: it needs a Store, and an Idle that is not negative", fs.ErrInvalid)
	}
	h := &Host{cfg: cfg, stop: make(chan struct{}), done: make(chan struct{}), open: make(map[string]*hosted)}
	go h.unloadIdle()
	return h, nil
}

// Create starts a new session in the host's store.
func (h *Host) Create(ctx context.Context, cfg Config) (*AgentSession, error) {
	cfg.Store, cfg.ID, cfg.forked = h.cfg.Store, "", h.adopt
	if limits := h.cfg.Session.Environment.PermissionLimits; !limits.IsZero() {
		cfg.Environment.PermissionLimits = limits
	}
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := h.adopt(s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// adopt adds an open session.
func (h *Host) adopt(s *AgentSession) error {
	e := &hosted{ready: make(chan struct{}), session: s}
	close(e.ready)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errHostClosed
	}
	h.open[s.ID()] = e
	return nil
}

// Open returns the session with this ID. If it is not open, or was closed, Open opens it with
// the stored configuration. All callers get the same session. The errors are those of the
// function Open.
func (h *Host) Open(ctx context.Context, id string) (*AgentSession, error) {
	return h.OpenAs(ctx, id, nil)
}

// OpenAs is Open with a change of the stored configuration, which is stored again. A session that is open keeps its
// configuration. Nil changes nothing.
func (h *Host) OpenAs(ctx context.Context, id string, change func(*Config)) (*AgentSession, error) {
	s, release, err := h.use(ctx, id, change)
	if err != nil {
		return nil, err
	}
	release()
	return s, nil
}

// Use is Open for a caller that works with the session until it calls release: until then the
// host does not close the session as idle.
func (h *Host) Use(ctx context.Context, id string) (s *AgentSession, release func(), err error) {
	return h.use(ctx, id, nil)
}

func (h *Host) use(ctx context.Context, id string, change func(*Config)) (s *AgentSession, release func(), err error) {
	for {
		h.mu.Lock()
		if h.closed {
			h.mu.Unlock()
			return nil, nil, errHostClosed
		}
		e, mine := h.open[id], false
		if e == nil {
			e, mine = &hosted{ready: make(chan struct{})}, true
			h.open[id] = e
		}
		e.uses++
		h.mu.Unlock()
		if s, err = h.await(ctx, id, e, mine, change); s != nil {
			return s, sync.OnceFunc(func() { h.release(e) }), nil
		}
		h.release(e)
		if err != nil {
			return nil, nil, err
		}
	}
}

func (h *Host) release(e *hosted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.uses--
	select {
	case <-e.ready:
		if e.err == nil {
			e.session.used()
		}
	default: // the caller did not wait
	}
}

// await returns the session of an entry once it is open. It returns neither a session nor an error
// if the caller must look for another entry.
func (h *Host) await(ctx context.Context, id string, e *hosted, mine bool, change func(*Config)) (*AgentSession, error) {
	if mine {
		h.load(ctx, id, e, change)
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	switch {
	case e.err == nil && e.session.check() == nil:
		return e.session, nil
	case e.err == nil: // the session is closed or about to close
		select {
		case <-e.session.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		h.forget(id, e)
	case mine || !errors.Is(e.err, context.Canceled) && !errors.Is(e.err, context.DeadlineExceeded):
		return nil, e.err
	}
	return nil, nil // the caller that was opening the session gave up
}

func (h *Host) load(ctx context.Context, id string, e *hosted, change func(*Config)) {
	cfg := h.cfg.Session
	cfg.Store, cfg.ID, cfg.forked = h.cfg.Store, id, h.adopt
	if change != nil {
		if cfg, e.err = cfg.recall(ctx); e.err == nil {
			change(&cfg)
		}
	}
	if e.err == nil {
		e.session, e.err = Open(ctx, cfg)
	}
	if e.err != nil {
		h.forget(id, e)
	}
	close(e.ready)
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed && e.err == nil {
		_ = e.session.Close() // Shutdown waits for the session and reports its error
	}
}

func (h *Host) forget(id string, e *hosted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[id] == e {
		delete(h.open, id)
	}
}

// Opened returns the session with this ID if it is open, else nil. It opens none; [ReadState],
// [ReadChanges] and the events of the store need no open session.
func (h *Host) Opened(id string) *AgentSession {
	h.mu.Lock()
	e := h.open[id]
	h.mu.Unlock()
	if e == nil {
		return nil
	}
	select {
	case <-e.ready:
	default: // it is being opened
		return nil
	}
	if e.err != nil || e.session.check() != nil {
		return nil
	}
	return e.session
}

// Store returns the store of the sessions.
func (h *Host) Store() store.Store { return h.cfg.Store }

// Destroy ends the sandbox of a session and removes the session, also one that cannot be opened.
// An unknown ID is store.ErrNotFound.
func (h *Host) Destroy(ctx context.Context, id string) error {
	s, release, err := h.Use(ctx, id)
	switch {
	case err == nil:
		defer release()
		if err := s.Destroy(ctx); err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if e := h.open[id]; e != nil && e.session == s {
			delete(h.open, id)
		}
		return nil
	case ctx.Err() != nil, errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrLocked), errors.Is(err, errHostClosed):
		return err
	}
	unlock, lerr := h.cfg.Store.Lock(ctx, id)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	return errors.Join(Remove(ctx, h.cfg.Store, id), unlock())
}

// List returns the matching records of the store, of open sessions and others.
func (h *Host) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return h.cfg.Store.List(ctx, f)
}

// Unload closes the session with this ID if it is open; see [AgentSession.Close].
func (h *Host) Unload(ctx context.Context, id string) error {
	h.mu.Lock()
	e := h.open[id]
	h.mu.Unlock()
	if e == nil {
		return nil
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if e.err != nil {
		return nil // the session could not be opened
	}
	err := e.session.Close()
	h.forget(id, e)
	if _, shared := h.cfg.Store.(store.Shared); shared && errors.Is(err, store.ErrConflict) {
		return nil // another program has the session
	}
	return err
}

// Shutdown closes all sessions and waits until they are closed or ctx is done. Afterwards no
// session can be opened.
func (h *Host) Shutdown(ctx context.Context) error {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.stop)
	}
	var ids []string
	for id := range h.open {
		ids = append(ids, id)
	}
	h.mu.Unlock()
	errs := make([]error, len(ids))
	var closing sync.WaitGroup
	for i, id := range ids {
		closing.Go(func() { errs[i] = h.Unload(ctx, id) })
	}
	all := make(chan struct{})
	go func() {
		closing.Wait()
		<-h.done
		close(all)
	}()
	select {
	case <-all:
		return errors.Join(errs...)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unloadIdle closes idle sessions.
func (h *Host) unloadIdle() {
	defer close(h.done)
	if h.cfg.Idle == 0 {
		return
	}
	tick := time.NewTicker(max(h.cfg.Idle/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-tick.C:
		}
		var closing sync.WaitGroup
		for id, e := range h.beginIdle() {
			closing.Go(func() {
				// Errors are in the log of the session.
				_ = e.session.Close()
				h.forget(id, e)
			})
		}
		closing.Wait()
	}
}

// beginIdle returns the idle sessions. Each accepts no calls any more.
func (h *Host) beginIdle() map[string]*hosted {
	h.mu.Lock()
	defer h.mu.Unlock()
	idle := make(map[string]*hosted)
	for id, e := range h.open {
		select {
		case <-e.ready:
			if e.err == nil && e.uses == 0 && e.session.shutIdle(h.cfg.Idle) {
				idle[id] = e
			}
		default:
		}
	}
	return idle
}

var errHostClosed = errors.New("the host of sessions is shut down")

// shutIdle makes a session refuse calls if it has had neither a reader nor a query for some time. It
// reports whether it did; the caller must then Close the session.
func (s *AgentSession) shutIdle(d time.Duration) bool {
	if !s.promptMu.TryLock() { // a prompt is being accepted
		return false
	}
	defer s.promptMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers > 0 || s.active != nil || len(s.queue) > 0 || s.state.Query != nil || len(s.state.Queued) > 0 || time.Since(s.quiet) < d {
		return false
	}
	s.closing = true
	return true
}

// used restarts the time after which the session is idle.
func (s *AgentSession) used() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = time.Now()
}

// reading registers a reader until done is called.
func (s *AgentSession) reading() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.readers--
		s.quiet = time.Now()
	}
}
