package main

import (
	"context"
	"sync"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// This file decides what agents do at the moment: of the sandboxes that ls and stats show, and of
// the sessions that 'envctl sessions' and compare show.

// The states of a query, which are also statuses of a session, and the other statuses.
const (
	queryRunning     = "running"
	queryWaiting     = "waiting"     // for an answer to a question of its agent
	queryInterrupted = "interrupted" // its program died, and its agent with it
	queryEnded       = "ended"
	queryUnknown     = "unknown" // its sandbox does not report it

	sessionIdle   = "idle"
	sessionFailed = "failed"
)

// sessionStatuses returns the statuses of sessions.
func sessionStatuses() []string {
	return []string{sessionIdle, queryRunning, queryWaiting, queryInterrupted, sessionFailed}
}

// listed is a sandbox in a list.
type listed struct {
	environment.SandboxInfo
	// Query is the state of the latest query; empty for none.
	Query string `json:"query,omitempty"`
}

// withQueries adds the state of each sandbox's latest query. It asks the kept sandboxes whose
// query has no program.
func withQueries(ctx context.Context, cfg environment.Config, from []environment.Sandbox, found []environment.SandboxInfo) []listed {
	list := make([]listed, len(found))
	var asking sync.WaitGroup
	turns := make(chan struct{}, askedAtOnce)
	for i, at := range locations(from, found) {
		s := &list[i]
		s.SandboxInfo = found[i]
		if s.Query = queryKnown(s.SandboxInfo); s.Query != queryUnknown || !s.Kept || s.Status != primitives.StatusRunning {
			continue
		}
		asking.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			cfg := cfg
			cfg.Sandbox = at.sandbox
			s.Query, s.Waiting = queryOf(ctx, cfg, at.id)
		})
	}
	asking.Wait()
	return list
}

// queryKnown returns the state of a sandbox's latest query, as far as it can be told without
// asking the sandbox.
func queryKnown(s environment.SandboxInfo) string {
	lives := s.Status == primitives.StatusRunning || s.Status == primitives.StatusPaused
	switch {
	case s.QueryBegan.IsZero():
		return ""
	case !s.QueryEnded.IsZero():
		return queryEnded
	case !lives:
		return queryInterrupted
	case s.QueryOwned && len(s.Waiting) > 0:
		return queryWaiting
	case s.QueryOwned, s.Ending:
		return queryRunning
	case s.Kept:
		return queryUnknown
	case s.QueryLost:
		return queryInterrupted
	case s.InUse:
		return queryRunning
	}
	return queryUnknown
}

// queryOf asks a sandbox for the state of its query.
func queryOf(ctx context.Context, cfg environment.Config, id string) (string, []environment.Waiting) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	env, err := environment.Attach(ctx, cfg, id)
	if err != nil {
		return queryUnknown, nil
	}
	defer func() { _ = env.Close() }() // nothing was changed
	return queryIn(ctx, env)
}

// queryIn asks the sandbox of an environment for the state of its query.
func queryIn(ctx context.Context, env *environment.Environment) (string, []environment.Waiting) {
	working, err := env.Working(ctx)
	if err != nil {
		return queryUnknown, nil
	}
	if !working {
		return queryEnded, nil
	}
	waiting, err := env.Waiting(ctx)
	if err != nil || len(waiting) == 0 {
		return queryRunning, nil
	}
	return queryWaiting, waiting
}

// since returns the state of a sandbox's query with its age and, of a question, its title.
func since(s listed) string {
	switch {
	case s.Query == queryWaiting && len(s.Waiting) > 0:
		return question(s.Waiting)
	case s.Query == "" || s.Query == queryEnded:
		return firstOf(s.Query, "-")
	}
	return s.Query + " " + age(s.QueryBegan)
}

// question describes the oldest of the questions of an agent.
func question(waiting []environment.Waiting) string {
	w := waiting[0]
	return queryWaiting + " " + age(w.Since) + ": " + visible.Line(w.Title)
}

// listedSession is a session in a list. Its Status is what it does now.
type listedSession struct {
	store.Record
	Waiting []environment.Waiting `json:"waiting,omitempty"`
}

// status returns the status for people.
func (l listedSession) status() string {
	if l.Status == queryWaiting && len(l.Waiting) > 0 {
		return question(l.Waiting)
	}
	return firstOf(l.Status, "-")
}

// sessionsNow returns stored sessions with what they do now. A record says "running" from the beginning
// of a query until its program stores the end, and so for ever if the program is killed. Such a
// session runs only if a program drives it, or if its sandbox goes on with the query.
func sessionsNow(ctx context.Context, s *sqlite.Store, records ...store.Record) []listedSession {
	list := make([]listedSession, len(records))
	left := map[string][]*listedSession{} // without a program, by their kind of sandbox
	boxes := map[string]environment.Sandbox{}
	for i, r := range records {
		l := &list[i]
		l.Record = r
		if l.Status != queryRunning {
			continue
		}
		if used, err := s.InUse(ctx, r.ID); used || err != nil {
			if at, err := environment.Remembered(r.Sandbox.Type, r.Sandbox.ID); err == nil && len(at.Waiting) > 0 {
				l.Status, l.Waiting = queryWaiting, at.Waiting
			}
			continue
		}
		l.Status = queryInterrupted
		if r.Sandbox.ID == "" {
			continue
		}
		box := environment.Sandbox{Type: r.Sandbox.Type}
		if cfg, err := session.Stored(ctx, s, r.ID); err == nil && cfg.Environment.Sandbox.Type == box.Type {
			box = cfg.Environment.Sandbox
		}
		boxes[box.Word()] = box
		left[box.Word()] = append(left[box.Word()], l)
	}
	for word, sessions := range left {
		inSandboxes(ctx, s, boxes[word], sessions)
	}
	return list
}

// inSandboxes sets the status of sessions without a program by their sandboxes, all of one kind.
func inSandboxes(ctx context.Context, s *sqlite.Store, box environment.Sandbox, sessions []*listedSession) {
	listing, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	all, failed := environment.List(listing, box)
	var found []environment.SandboxInfo
	var of []*listedSession
	for _, l := range sessions {
		if failed != nil {
			l.Status = queryUnknown
		}
		for _, info := range all {
			if info.ID == l.Sandbox.ID {
				found, of = append(found, info), append(of, l)
			}
		}
	}
	for i, at := range withQueries(ctx, environment.Config{}, []environment.Sandbox{box}, found) {
		l := of[i]
		switch at.Query {
		case "":
			l.Status = queryInterrupted // the program died before the agent had the prompt
		case queryEnded:
			// The end is not stored yet. Prompts that were queued behind wait for a program.
			l.Status = sessionIdle
			if state, err := session.ReadState(ctx, s, l.ID); err != nil || len(state.Queued) > 0 {
				l.Status = queryInterrupted
			}
		default:
			l.Status, l.Waiting = at.Query, at.Waiting
		}
	}
}
