package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net/http"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// This file has the protocol of two steps and a stream: load a team, create a session of it, run a prompt.

// load goes as far as create does before it makes anything.
func (s *Server) load(c *call, in sessionapi.NewSession) (sessionapi.Team, error) {
	cfg, err := s.configure(c.Context(), in)
	if err != nil {
		return sessionapi.Team{}, err
	}
	if err := cfg.Check(c.Context()); err != nil {
		return sessionapi.Team{}, err
	}
	config, err := environment.FormatSafely(cfg.Environment)
	return sessionapi.Team{Config: config}, err
}

// run sends a prompt and streams the events of its query. A client that goes away does not end the query. If it asks again under the
// same key, it gets the events of the same query, after the one that it has seen last.
func (s *Server) run(w http.ResponseWriter, c *call, in sessionapi.Run) error {
	seen, err := firstEvent(c)
	if err != nil {
		return err
	}
	if in.SessionID == "" {
		return fmt.Errorf("%w: session_id is empty; POST %s/session/create returns one", fs.ErrInvalid, sessionapi.Prefix)
	}
	if err := s.owns(c.Context(), callerOf(c.Context()), in.SessionID); err != nil {
		return err
	}
	c.SetPathValue("id", in.SessionID)
	c.Body = io.NopCloser(bytes.NewReader(c.body)) // for the server that has the session
	if forwarded, err := s.elsewhere(w, c.Request, in.SessionID); forwarded || err != nil {
		return err
	}
	answer := &recorded{status: http.StatusOK, header: make(http.Header)}
	if err := s.once.serve(answer, c.Request, c.body, s.accept(in.Prompt)); err != nil {
		return err
	}
	if answer.status != http.StatusOK {
		maps.Copy(w.Header(), answer.header)
		w.WriteHeader(answer.status)
		_, _ = w.Write(answer.body.Bytes()) // the client may have gone
		return nil
	}
	var query sessionapi.Accepted
	if err := json.Unmarshal(answer.body.Bytes(), &query); err != nil {
		return err
	}
	read, err := s.reader(c)
	if err != nil {
		return err
	}
	s.follow(w, c.Request, func(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
		return after(seen, sessionapi.EventsOf(query.ID, read(ctx, query.Seq)))
	})
	return nil
}

// accept returns the handler that answers with the query of a prompt.
func (s *Server) accept(in sessionapi.Prompt) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{Request: r}
		defer c.end()
		query, err := s.prompt(c, in) //nolint:contextcheck // the call has that of the request
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.answer(w, http.StatusOK, query)
	}
}

// after leaves out the events before the one whose Seq is from. The end of a query ends its events whether a client has seen it or not.
func after(from uint64, events iter.Seq2[runnerscripts.Event, error]) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range events {
			if (err != nil || ev.Seq >= from) && !yield(ev, err) {
				return
			}
		}
	}
}

func (s *Server) tools(c *call, _ none) (sessionapi.Tools, error) {
	state, err := s.state(c, none{})
	if err == nil {
		err = reports(state, "tools", len(state.Tools))
	}
	return sessionapi.Tools{Tools: state.Tools}, err
}

func (s *Server) models(c *call, _ none) (sessionapi.Models, error) {
	state, err := s.state(c, none{})
	if err == nil {
		err = reports(state, "models", len(state.Models))
	}
	return sessionapi.Models{Models: state.Models}, err
}

// reports returns an error for an empty list that is not what the agent has: it has not said yet, or does not say.
func reports(state session.State, what string, n int) error {
	switch {
	case n > 0:
		return nil
	case !state.Initialized:
		return fmt.Errorf("%w: the agent says its %s with the first prompt", session.ErrNoEnvironment, what)
	}
	return fmt.Errorf("%w: the agent %q does not say its %s", errors.ErrUnsupported, state.Agent, what)
}
