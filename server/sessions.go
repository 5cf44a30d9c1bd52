package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func (s *Server) list(c *call, _ none) (sessionapi.Sessions, error) {
	q := c.query
	f := store.Filter{
		Agent: q.text("agent"), Status: q.text("status"), Parent: q.text("parent"),
		Since: q.instant("since"), Limit: int(q.number("limit")),
	}
	for _, pair := range q.values["metadata"] {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			q.fail("metadata", "%q is not of the form KEY=VALUE", pair)
		}
		if f.Metadata == nil {
			f.Metadata = make(map[string]string)
		}
		f.Metadata[key] = value
	}
	if q.err != nil {
		return sessionapi.Sessions{}, q.err
	}
	if caller := callerOf(c.Context()); caller.Role != RoleAdmin {
		f.Metadata = ownedBy(caller, f.Metadata)
	}
	list := sessionapi.Sessions{Sessions: []sessionapi.Listed{}}
	for record, err := range s.cfg.Host.List(c.Context(), f) {
		listed := sessionapi.Listed{Record: record}
		if errors.Is(err, store.ErrCorrupt) {
			_, said := s.describe(c.Request, err)
			listed.Error = &said
		} else if err != nil {
			return sessionapi.Sessions{}, err
		}
		list.Sessions = append(list.Sessions, listed)
	}
	return list, nil
}

func (s *Server) create(c *call, in sessionapi.NewSession) (sessionapi.Created, error) {
	cfg, err := s.configure(c.Context(), in)
	if err != nil {
		return sessionapi.Created{}, err
	}
	made, err := s.cfg.Host.Create(c.Context(), cfg)
	if err != nil { // a second session without a prompt would cost little
		return sessionapi.Created{}, s.moving(err)
	}
	return sessionapi.Created{ID: made.ID()}, nil
}

// configure returns the configuration of a new session, or why the caller may not have it. servers are the MCP servers of a
// client of the Agent Client Protocol.
func (s *Server) configure(ctx context.Context, in sessionapi.NewSession, servers ...runnerscripts.MCPServer) (session.Config, error) {
	if err := admitRequest(callerOf(ctx), in); err != nil {
		return session.Config{}, err
	}
	config, err := complete(s.cfg.Defaults, in.Config)
	if err != nil {
		return session.Config{}, err
	}
	env, err := environment.ParseConfig(config)
	if err != nil {
		return session.Config{}, err
	}
	cfg := session.Config{
		Environment: env, Metadata: in.Metadata, RejectBusy: in.RejectBusy, MaxQueue: in.MaxQueue,
		HealthInterval: in.HealthInterval.Span(), IdleTimeout: in.IdleTimeout.Span(), NoFiles: in.NoFiles,
		MaxQuerySize: in.MaxQuerySize, MaxSessionSize: in.MaxSessionSize,
		CheckpointInterval: in.CheckpointInterval.Span(), KeepPeriodic: in.KeepPeriodic,
		WatchWorkspace: (*environment.FilesOptions)(in.WatchWorkspace),
	}
	cfg.Environment.Session.User = callerOf(ctx).Name
	cfg.Environment.PermissionTimeout = in.PermissionTimeout.Span()
	cfg.Environment.Profile.MCPServers = slices.Concat(cfg.Environment.Profile.MCPServers, servers)
	if err := s.admitSession(ctx, callerOf(ctx), in, &cfg); err != nil {
		return session.Config{}, err
	}
	if s.cfg.Configure != nil {
		if err := s.cfg.Configure(ctx, &cfg); err != nil {
			return session.Config{}, err
		}
	}
	cfg.Environment.OnPermission, cfg.Environment.Logger = environment.AnswerLater, s.cfg.Logger
	return cfg, nil
}

func (s *Server) state(c *call, _ none) (session.State, error) {
	if open := s.opened(c); open != nil {
		return open.State(c.Context())
	}
	return session.ReadState(c.Context(), s.cfg.Host.Store(), c.PathValue("id"))
}

func (s *Server) open(c *call, _ none) (none, error) {
	_, err := s.session(c)
	return none{}, err
}

func (s *Server) unload(c *call, _ none) (none, error) {
	return none{}, s.cfg.Host.Unload(c.Context(), c.PathValue("id"))
}

func (s *Server) destroy(c *call, _ none) (none, error) {
	return none{}, s.cfg.Host.Destroy(c.Context(), c.PathValue("id"))
}

func (s *Server) prompt(c *call, in sessionapi.Prompt) (sessionapi.Accepted, error) {
	open, err := s.session(c)
	if err != nil {
		return sessionapi.Accepted{}, err
	}
	if key := c.Header.Get(sessionapi.KeyHeader); key != "" {
		// The prompt may have reached a server that has died since.
		id := uuid.NewSHA1(uuid.NameSpaceURL, []byte(callerOf(c.Context()).Name+" "+c.PathValue("id")+" "+key)).String()
		turn, err := open.PromptOnce(c.Context(), environment.Query{ID: id, Prompt: in.Text, Attachments: in.Attachments, OutputSchema: in.OutputSchema})
		if err != nil {
			return sessionapi.Accepted{}, s.moving(err)
		}
		return sessionapi.Accepted{ID: turn.ID(), Seq: turn.Seq()}, nil
	}
	turn, err := open.PromptQuery(c.Context(), environment.Query{Prompt: in.Text, Attachments: in.Attachments, OutputSchema: in.OutputSchema})
	if err != nil {
		return sessionapi.Accepted{}, err
	}
	return sessionapi.Accepted{ID: turn.ID(), Seq: turn.Seq()}, nil
}

// interruptOne stops a query. One that has ended is left alone.
func (s *Server) interruptOne(c *call, _ none) (none, error) {
	open, err := s.session(c)
	if err != nil {
		return none{}, err
	}
	for _, turn := range open.Turns() {
		if turn.ID() == c.PathValue("query") {
			return none{}, turn.Interrupt(c.Context())
		}
	}
	return none{}, nil
}

func (s *Server) interrupt(c *call, _ none) (none, error) {
	open, err := s.session(c)
	if err != nil {
		return none{}, err
	}
	return none{}, open.Interrupt(c.Context())
}

func (s *Server) respond(c *call, in runnerscripts.PermissionDecision) (none, error) {
	open, err := s.session(c)
	if err != nil {
		return none{}, err
	}
	in.By = callerOf(c.Context()).String()
	return none{}, open.Respond(c.Context(), c.PathValue("request"), in)
}

func (s *Server) setOptions(c *call, in session.Options) (none, error) {
	open, err := s.session(c)
	if err != nil {
		return none{}, err
	}
	return none{}, open.SetOptions(c.Context(), in)
}

func (s *Server) transcript(c *call, _ none) (runnerscripts.Transcript, error) {
	open, err := s.session(c)
	if err != nil {
		return runnerscripts.Transcript{}, err
	}
	return open.Transcript(c.Context())
}

func (s *Server) terminate(c *call, _ none) (none, error) {
	open, err := s.session(c)
	if err != nil {
		return none{}, err
	}
	return none{}, open.TerminateEnvironment(c.Context())
}

// maxForks limits one fork. Each may have a sandbox of its own.
const maxForks = 64

func (s *Server) fork(c *call, in sessionapi.Fork) (sessionapi.Forks, error) {
	open, err := s.session(c)
	if err != nil {
		return sessionapi.Forks{}, err
	}
	if in.N > maxForks {
		return sessionapi.Forks{}, fmt.Errorf("fork: %w: %d sessions; at most %d at a time", fs.ErrInvalid, in.N, maxForks)
	}
	if err := s.room(c.Context(), callerOf(c.Context()), in.N); err != nil {
		return sessionapi.Forks{}, err
	}
	var made []*session.AgentSession
	if in.Checkpoint == nil {
		made, err = open.Fork(c.Context(), in.N)
	} else {
		made, err = open.ForkFrom(c.Context(), *in.Checkpoint, in.N)
	}
	forks := sessionapi.Forks{IDs: []string{}}
	for _, f := range made {
		forks.IDs = append(forks.IDs, f.ID())
	}
	return forks, err
}
