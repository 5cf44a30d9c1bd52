package session

import (
	"context"
	"errors"

	"github.com/agentenv-dev/agentenv/session/store"
)

// TakeOver opens the sessions whose programs have died while a query ran or waited, as [Open] does, and
// ends those of this host that another program has opened meanwhile, because this one did not reach the
// store; their sandboxes stay if they are kept. In a store that is no store.Shared it does nothing. A
// program that shares its store with others, as servers do, calls it every few seconds.
//
// The errors of sessions that cannot be opened are joined; the others are open.
func (h *Host) TakeOver(ctx context.Context) error {
	shared, ok := h.cfg.Store.(store.Shared)
	if !ok {
		return nil
	}
	var errs []error
	for _, id := range shared.Lost() {
		if s := h.Opened(id); s != nil {
			s.replaced()
		}
		errs = append(errs, h.Unload(ctx, id))
	}
	abandoned, err := shared.Abandoned(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, id := range abandoned {
		if err := h.takeOver(ctx, id); err != nil && !passed(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// passed reports whether an error says that there is nothing to do any more: another program was faster.
func passed(err error) bool {
	return errors.Is(err, store.ErrLocked) || errors.Is(err, store.ErrNotFound)
}

// takeOver opens a session if it has a query. Otherwise the lease is only given back, so that the session
// is not looked at again.
func (h *Host) takeOver(ctx context.Context, id string) error {
	state, err := ReadState(ctx, h.cfg.Store, id)
	if err != nil {
		return err
	}
	if state.Query != nil || len(state.Queued) > 0 {
		if _, err = h.Open(ctx, id); err == nil || passed(err) || ctx.Err() != nil {
			return err
		}
	}
	unlock, lerr := h.cfg.Store.Lock(ctx, id)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	return errors.Join(err, unlock())
}

// replaced ends a session whose lease another program may have.
func (s *AgentSession) replaced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		_ = s.breakLocked(store.ErrConflict)
	}
}
