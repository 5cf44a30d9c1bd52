package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// takenAtOnce is how many sessions TakeOver opens or ends at once, and takeOverTime how long one may take.
	takenAtOnce  = 8
	takeOverTime = time.Minute
)

// TakeOver opens the sessions whose programs have died while a query ran or waited, as [Open] does, and
// ends those of this host that another program may have by now, because this one did not reach the
// store; their sandboxes stay if they are kept. In a store that is no store.Shared it does nothing. A
// program that shares its store with others, as servers do, calls it every few seconds, from one goroutine.
//
// The errors of sessions that cannot be opened are joined; the next call tries these again.
func (h *Host) TakeOver(ctx context.Context) error {
	shared, ok := h.cfg.Store.(store.Shared)
	if !ok {
		return nil
	}
	lost := each(shared.Lost(), func(id string) error {
		s := h.Opened(id)
		if s == nil { // or it is being opened, under another lease
			return nil
		}
		s.replaced()
		return h.Unload(ctx, id)
	})
	abandoned, err := shared.Abandoned(ctx)
	if err != nil {
		return errors.Join(lost, err)
	}
	for id := range h.failed { // Open has released the lease, so the session is not abandoned any more
		if !slices.Contains(abandoned, id) {
			abandoned = append(abandoned, id)
		}
	}
	failed := make(map[string]bool)
	var mu sync.Mutex
	err = each(abandoned, func(id string) error {
		opening, cancel := context.WithTimeout(ctx, takeOverTime)
		defer cancel()
		err := h.takeOver(opening, id)
		if err == nil || errors.Is(err, store.ErrLocked) || errors.Is(err, store.ErrNotFound) {
			return nil // or another program was faster
		}
		mu.Lock()
		defer mu.Unlock()
		failed[id] = true
		return err
	})
	h.failed = failed
	return errors.Join(lost, err)
}

// each calls f for each ID, several at once, and joins the errors.
func each(ids []string, f func(id string) error) error {
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	turn := make(chan struct{}, takenAtOnce)
	for i, id := range ids {
		turn <- struct{}{}
		all.Go(func() {
			errs[i] = f(id)
			<-turn
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// takeOver opens a session if it has a query. Otherwise the lease is only released, so that the session
// is not looked at again.
func (h *Host) takeOver(ctx context.Context, id string) error {
	state, err := ReadState(ctx, h.cfg.Store, id)
	if err != nil {
		return err
	}
	if state.Query != nil || len(state.Queued) > 0 {
		_, err = h.Open(ctx, id)
		return err
	}
	unlock, err := h.cfg.Store.Lock(ctx, id)
	if err != nil {
		return err
	}
	return unlock()
}

// confirm returns an error unless the kept sandbox is still this session's. Another program that has taken the
// session over works in it, so this one must not end it.
func (s *AgentSession) confirm(ctx context.Context) error {
	if _, shared := s.store.(store.Shared); !shared || !s.durable {
		return nil
	}
	err := s.store.Update(ctx, s.id, func(*store.Record) {}) // a change that is refused if the lease is lost
	if errors.Is(err, store.ErrConflict) {
		s.replaced()
	}
	return err
}

// replaced ends a session whose lease another program may have.
func (s *AgentSession) replaced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		_ = s.breakLocked(fmt.Errorf("%w, or can be: this one did not reach the store in time", store.ErrConflict))
	}
}
