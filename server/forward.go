package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Servers that share a store: a session is open on one of them, and the others pass its requests on to
// that one. The lease in the store says which, and its name is the server's address.

const (
	// forwardedHeader marks a request that another server has passed on. It is passed on once only.
	forwardedHeader = "Agentenv-Forwarded"
	// takeOverInterval is how often a server looks for sessions of servers that have died. The lease of
	// those must expire first, for which the store has its time.
	takeOverInterval = 2 * time.Second
)

// shared returns the store of the sessions if other servers may have them, else nil.
func (s *Server) shared() store.Shared {
	shared, _ := s.cfg.Host.Store().(store.Shared)
	return shared
}

// elsewhere passes a request for a session on to the server that has it open, and reports whether it did.
func (s *Server) elsewhere(w http.ResponseWriter, r *http.Request, id string) (bool, error) {
	shared := s.shared()
	if shared == nil || s.cfg.Host.Opened(id) != nil {
		return false, nil
	}
	owner, err := shared.Owner(r.Context(), id)
	if err != nil {
		return false, err
	}
	to, err := url.Parse(owner)
	if err != nil || to.Host == "" { // no server: the session is in use, as that program says
		return false, nil
	}
	if r.Header.Get(forwardedHeader) != "" {
		return false, fmt.Errorf("%w: %s", sessionapi.ErrMoving, id)
	}
	ctx, cancel := context.WithCancel(r.Context())
	answered := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { s.watchOwner(ctx, cancel, r, owner, answered) })
	defer watching.Wait()
	defer cancel()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.Header.Set(forwardedHeader, "1")
		},
		Transport: &s.forwarding,
		ModifyResponse: func(res *http.Response) error {
			close(answered)
			if res.StatusCode == http.StatusUnauthorized {
				return fmt.Errorf("%w: it does not accept the token; all servers of a database need the same --token-file", fs.ErrPermission)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.log.Warn("another server does not answer", "session", id, "server", to.Redacted(), "error", err)
			s.fail(w, r, fmt.Errorf("%w: %s is on %s, which does not answer: %w", sessionapi.ErrMoving, id, to.Redacted(), err))
		},
		ErrorLog: s.errorLog(),
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
	return true, nil
}

// watchOwner cancels a request for another server when that has lost the session without an answer, as one that hangs, and
// a stream, which may be without an end, when this server stops.
func (s *Server) watchOwner(ctx context.Context, cancel context.CancelFunc, r *http.Request, owner string, answered <-chan struct{}) {
	tick := time.NewTicker(takeOverInterval)
	defer tick.Stop()
	draining, gone := s.draining, false
	if r.Method != http.MethodGet && r.URL.Path != sessionapi.Prefix+"/session/run" {
		draining = nil
	}
	for {
		select {
		case <-draining:
			cancel()
			return
		case <-ctx.Done():
			return
		case <-answered:
			answered = nil
			tick.Stop()
		case <-tick.C:
			now, err := s.shared().Owner(ctx, r.PathValue("id"))
			switch {
			case err != nil || now == owner:
				gone = false
			case now != "" || gone:
				cancel()
			default: // a change may be about to answer that it has closed the session
				gone = true
			}
		}
	}
}

// takeOver keeps the sessions of a shared store going until ctx is done; see session.Host.TakeOver.
func (s *Server) takeOver(ctx context.Context) {
	if s.shared() == nil {
		return
	}
	tick := time.NewTicker(takeOverInterval)
	defer tick.Stop()
	said := ""
	for {
		err := s.cfg.Host.TakeOver(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said: // the same every two seconds would hide the rest of the log
			said = err.Error()
			s.log.Error("sessions of other servers cannot be taken over", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// moves reports whether an error says that a session goes on at another server, or that the store is away: then the client
// tries again.
func (s *Server) moves(err error) bool {
	return s.shared() != nil && (errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrLocked) ||
		errors.Is(err, store.ErrUnavailable) || errors.Is(err, session.ErrClosed))
}

// moving returns the error of a call that has changed nothing, or may be made twice: a client that learns that the session
// moves makes it again.
func (s *Server) moving(err error) error {
	if s.moves(err) {
		return fmt.Errorf("%w: %w", sessionapi.ErrMoving, err)
	}
	return err
}
