package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

func (a *app) newSessionsRemoveCmd() *cobra.Command {
	var older time.Duration
	cmd := &cobra.Command{
		Use:   "rm [flags] ID...",
		Short: "Remove stored sessions, with their events and files",
		Long: `Remove stored sessions, with their events and files. A session that a program uses, or
whose sandbox is still there, is not removed: 'envctl rm' ends a sandbox.`,
		Example: `  envctl sessions rm 3f2a 77b0
  envctl sessions rm --older-than 720h`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch byAge := cmd.Flags().Changed("older-than"); {
			case byAge && (len(ids) > 0 || older < 0):
				return usagef("--older-than chooses the sessions by their age; give it alone, as in --older-than 720h")
			case byAge && a.server != "":
				return usagef("--older-than is for the sessions of this machine; name those of the server")
			case byAge:
				return a.removeOlder(cmd.Context(), older)
			case len(ids) == 0:
				return usagef("no session is named; give IDs of 'envctl sessions ls', or --older-than")
			}
			var errs []error
			for _, id := range ids {
				if a.server != "" {
					errs = append(errs, a.removeServed(cmd.Context(), id))
				} else {
					errs = append(errs, a.removeNamed(cmd.Context(), id))
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().DurationVar(&older, "older-than", 0, "those in which nothing has happened for so long and that nothing uses, as in 720h")
	cmd.ValidArgsFunction = a.completeSessions(-1)
	return cmd
}

// removeNamed removes the session for id, also one whose record is damaged.
func (a *app) removeNamed(ctx context.Context, id string) error {
	err := a.changeSession(ctx, id, func(s *sqlite.Store, r store.Record) error {
		return a.removeSession(ctx, s, r.ID, nil)
	})
	failed, ok := errors.AsType[*store.Error](err)
	if !ok || failed.Op != "load" || !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	return a.changeSessions(ctx, func(s *sqlite.Store) error { return a.removeSession(ctx, s, failed.ID, nil) })
}

// removeOlder removes the sessions without events for the given time that are not in use.
func (a *app) removeOlder(ctx context.Context, age time.Duration) error {
	err := a.changeSessions(ctx, func(s *sqlite.Store) error {
		list, err := records(ctx, s, store.Filter{})
		errs := []error{err}
		for _, r := range list {
			unused := func(r store.Record) bool { return r.Status != damagedStatus && time.Since(r.UpdatedAt) >= age }
			if !unused(r) {
				continue
			}
			if err := a.removeSession(ctx, s, r.ID, unused); !errors.Is(err, store.ErrLocked) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeSession removes a session that no program uses and whose sandbox has ended. If only is not
// nil, it removes the session only if only returns true, and leaves one in use without an error.
func (a *app) removeSession(ctx context.Context, s *sqlite.Store, id string, only func(store.Record) bool) error {
	unlock, err := s.Lock(ctx, id)
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("%w; end that program first", err)
	}
	if err != nil {
		return err
	}
	r, err := s.Load(ctx, id)
	if only == nil && errors.Is(err, store.ErrCorrupt) {
		err = nil // nothing is known of its sandbox
	}
	if err == nil && only != nil && !only(r) {
		return unlock() // a program has used it meanwhile
	}
	missing := errNoSandbox
	if err == nil && r.Sandbox.ID != "" {
		// Without the stored configuration find searches all types, but no other machines.
		cfg, _ := session.Stored(ctx, s, id)
		_, missing = find(ctx, cfg.Environment.Sandbox, r.Sandbox.ID)
		unknown := r.Status == queryRunning && !errors.Is(missing, errNoSandbox)
		if only != nil && (missing == nil || unknown) {
			return unlock() // its agent may still work
		}
		if missing == nil {
			err = fmt.Errorf("the session %s goes on in the sandbox %s; end that first, with 'envctl rm %[2]s'", id, r.Sandbox.ID)
		}
	}
	if err == nil {
		err = session.Remove(ctx, s, id)
	}
	if err = errors.Join(err, unlock()); err != nil {
		return err
	}
	if !errors.Is(missing, errNoSandbox) { // the sandbox could not be searched for
		return a.err.Row(term.Plain(fmt.Sprintf("its %s sandbox may still be there; end it with 'envctl rm %s'", r.Sandbox.Type, r.Sandbox.ID)))
	}
	return nil
}
