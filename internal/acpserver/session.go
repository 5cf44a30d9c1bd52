package acpserver

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// The keys of a session's metadata.
const (
	folderKey = "cwd"         // the client's path of the workspace
	traceKey  = "traceparent" // the W3C trace context of the request that created the session
)

// Limits of what is stored with a session, in bytes.
const (
	maxPath  = 4096
	maxTrace = 256
)

// sessionRequest is the request session/new, session/load or session/resume. It decodes the servers itself, because
// acp-go-sdk takes a server that lacks a field for one of another kind.
type sessionRequest struct {
	SessionID             acp.SessionId `json:"sessionId"`
	Cwd                   string        `json:"cwd"`
	MCPServers            []mcpServer   `json:"mcpServers"`
	AdditionalDirectories []string      `json:"additionalDirectories"`
	Meta                  struct {
		Traceparent string          `json:"traceparent"`
		Extra       json.RawMessage `json:"agentenv"`
	} `json:"_meta"`
}

// mcpServer is a server of any kind.
type mcpServer struct {
	Type    string            `json:"type"`
	Name    string            `json:"name"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     []acp.EnvVariable `json:"env"`
	URL     string            `json:"url"`
	Headers []acp.HttpHeader  `json:"headers"`
}

// sessionRequest decodes and checks what the three requests share.
func (s *server) sessionRequest(params json.RawMessage) (sessionRequest, []runnerscripts.MCPServer, error) {
	req, err := decode[sessionRequest](params)
	switch {
	case err != nil:
		return req, nil, err
	case !filepath.IsAbs(req.Cwd):
		return req, nil, Invalid("cwd: %q is not absolute; give the absolute path of a folder", req.Cwd)
	case len(req.Cwd) > maxPath:
		return req, nil, Invalid("cwd: it has %d bytes; give a path of at most %d", len(req.Cwd), maxPath)
	case len(req.Meta.Traceparent) > maxTrace:
		return req, nil, Invalid("_meta.traceparent has %d bytes; give at most %d", len(req.Meta.Traceparent), maxTrace)
	case len(req.AdditionalDirectories) > 0 && !s.cfg.Directories:
		return req, nil, Invalid("the sandbox of a session has one folder, cwd; leave additionalDirectories out")
	}
	if err := s.cfg.AdmitServers(len(req.MCPServers)); err != nil {
		return req, nil, err
	}
	req.Cwd = filepath.Clean(req.Cwd)
	for i, dir := range req.AdditionalDirectories {
		if !filepath.IsAbs(dir) {
			return req, nil, Invalid("additionalDirectories[%d]: %q is not absolute; give the absolute path of a folder", i, dir)
		}
	}
	var servers []runnerscripts.MCPServer
	for i, m := range req.MCPServers {
		server, err := m.server(i)
		if err != nil {
			return req, nil, err
		}
		servers = append(servers, server)
	}
	return req, servers, nil
}

// server returns the server in the form of a profile.
func (m mcpServer) server(i int) (runnerscripts.MCPServer, error) {
	out := runnerscripts.MCPServer{Name: m.Name}
	switch {
	case m.Name == "":
		return out, Invalid("mcpServers[%d]: the server has no name; give it one", i)
	case m.Type == "" || m.Type == "stdio":
		if m.Command == "" {
			return out, Invalid("mcpServers[%d]: server %q has no command; give it one, or the type http and a url", i, m.Name)
		}
		out.Command = append([]string{m.Command}, m.Args...)
		for _, e := range m.Env {
			out.Env = with(out.Env, e.Name, e.Value)
		}
	case m.Type == "http":
		if m.URL == "" {
			return out, Invalid("mcpServers[%d]: server %q has no url; give it one", i, m.Name)
		}
		out.URL = m.URL
		for _, h := range m.Headers {
			out.Headers = with(out.Headers, h.Name, h.Value)
		}
	default:
		return out, Invalid("mcpServers[%d]: server %q: agentenv passes no servers of the type %q on; use stdio or http", i, m.Name, m.Type)
	}
	return out, nil
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = make(map[string]string)
	}
	m[key] = value
	return m
}

// newSession creates a session for a folder. The first prompt creates its sandbox.
func (s *server) newSession(ctx context.Context, params json.RawMessage) (work, error) {
	req, servers, err := s.sessionRequest(params)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (any, error) {
		cfg, err := s.cfg.Configure(ctx, Request{Folder: req.Cwd, Servers: servers, Extra: req.Meta.Extra})
		if err != nil {
			return nil, err
		}
		if err := cfg.Environment.Profile.Check(); err != nil {
			return nil, Invalid("%v", err)
		}
		cfg.Environment.OnPermission, cfg.RejectBusy = environment.AnswerLater, true
		cfg.Metadata = with(maps.Clone(cfg.Metadata), folderKey, req.Cwd)
		maps.Copy(cfg.Metadata, s.cfg.Metadata)
		if req.Meta.Traceparent != "" {
			cfg.Metadata[traceKey] = req.Meta.Traceparent
		}
		agent, err := s.cfg.Host.Create(ctx, cfg)
		if err != nil {
			return nil, err
		}
		state, err := agent.State(context.WithoutCancel(ctx)) // the client must learn of the session
		if err != nil {
			return nil, err
		}
		c, _ := s.add(acp.SessionId(agent.ID()), req.Cwd)
		c.choices.begin(s.cfg.Modes(state.Agent), state, cfg)
		c.next = state.LastSeq + 1
		return answered{acp.NewSessionResponse{
			SessionId: c.id, Modes: c.choices.modes(), ConfigOptions: c.choices.options(),
		}, c.goOn}, nil
	}, nil
}

// loadSession opens a session and sends what was said in it.
func (s *server) loadSession(ctx context.Context, params json.RawMessage) (work, error) {
	return s.reopen(ctx, params, true)
}

// resumeSession opens a session.
func (s *server) resumeSession(ctx context.Context, params json.RawMessage) (work, error) {
	return s.reopen(ctx, params, false)
}

func (s *server) reopen(ctx context.Context, params json.RawMessage, replay bool) (work, error) {
	req, servers, err := s.sessionRequest(params)
	if err != nil {
		return nil, err
	}
	return func(life context.Context) (any, error) {
		record, err := s.record(ctx, req.SessionID)
		if err != nil {
			return nil, err
		}
		stored, err := session.Stored(ctx, s.cfg.Host.Store(), record.ID)
		if err != nil {
			return nil, err
		}
		if folder := folderOf(record, stored); folder != "" && folder != req.Cwd {
			return nil, Invalid("cwd: the session is of the folder %s, not %s; load it there", folder, req.Cwd)
		}
		c, fresh := s.add(req.SessionID, req.Cwd)
		replied := make(chan struct{})
		state, err := c.reopen(ctx, life, replay, replied, func(cfg *session.Config) {
			own := &cfg.Environment.Profile
			own.MCPServers = withServers(own.MCPServers, servers)
		})
		if err != nil {
			if fresh {
				s.remove(req.SessionID)
			}
			return nil, err
		}
		c.choices.begin(s.cfg.Modes(state.Agent), state, stored)
		modes, options := c.choices.modes(), c.choices.options()
		then := func(life context.Context) {
			close(replied)
			c.goOn(life)
		}
		if replay {
			return answered{acp.LoadSessionResponse{Modes: modes, ConfigOptions: options}, then}, nil
		}
		return answered{acp.ResumeSessionResponse{Modes: modes, ConfigOptions: options}, then}, nil
	}, nil
}

// record returns the record of a session. One that the client may not see does not exist.
func (s *server) record(ctx context.Context, id acp.SessionId) (store.Record, error) {
	record, err := s.cfg.Host.Store().Load(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) || err == nil && !(store.Filter{Metadata: s.cfg.Metadata}).Matches(record) {
		return store.Record{}, unknown(id)
	}
	return record, err
}

// folderOf returns the folder of a session on the client's machine; empty if it is not known.
func folderOf(record store.Record, cfg session.Config) string {
	if folder := record.Metadata[folderKey]; folder != "" {
		return folder
	}
	if folder := cfg.Environment.Sandbox.Workspace; filepath.IsAbs(folder) {
		return filepath.Clean(folder)
	}
	for _, src := range cfg.Environment.Workspace {
		if src.Folder != nil && src.Into == "" && filepath.IsAbs(src.Folder.Path) {
			return filepath.Clean(src.Folder.Path)
		}
	}
	return ""
}

// closeSession cancels the running query of a session, and ends its sandbox unless that is kept. The session stays stored.
func (s *server) closeSession(ctx context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.CloseSessionRequest](params)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (any, error) {
		if _, err := s.record(ctx, req.SessionId); err != nil {
			return nil, err
		}
		c := s.remove(req.SessionId)
		err := s.cfg.Host.Unload(context.WithoutCancel(ctx), string(req.SessionId))
		if c != nil {
			c.leave()
			err = errors.Join(err, c.forget(ctx))
		}
		return acp.CloseSessionResponse{}, err
	}, nil
}

// deleteSession ends the sandbox of a session and removes the session. To delete one that does not exist is no error, as the
// protocol demands.
func (s *server) deleteSession(ctx context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.CloseSessionRequest](params)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (any, error) {
		_, err := s.record(ctx, req.SessionId)
		if err == nil {
			err = s.cfg.Host.Destroy(context.WithoutCancel(ctx), string(req.SessionId))
		}
		if c := s.remove(req.SessionId); c != nil {
			c.leave()
		}
		if e, ok := errors.AsType[*acp.RequestError](err); ok && e.Code == codeNotFound {
			err = nil
		}
		return struct{}{}, ignoreMissing(err)
	}, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// find returns the session that the client has opened; nil for none.
func (s *server) find(id acp.SessionId) *conversation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// opened is find for a request.
func (s *server) opened(id acp.SessionId) (*conversation, error) {
	if c := s.find(id); c != nil {
		return c, nil
	}
	return nil, unknown(id)
}

// add returns the session that the client has opened, and adds it if it is new.
func (s *server) add(id acp.SessionId, folder string) (c *conversation, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = s.sessions[id]
	if fresh = c == nil; fresh {
		c = newConversation(s, id, folder)
		s.sessions[id] = c
	}
	return c, fresh
}

// remove removes a session from those that the client has opened, and returns it.
func (s *server) remove(id acp.SessionId) *conversation {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.sessions[id]
	delete(s.sessions, id)
	return c
}
