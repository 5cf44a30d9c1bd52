package acp

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// conversation is one session of the editor.
type conversation struct {
	server  *server
	id      acp.SessionId
	agent   *session.AgentSession
	paths   *paths
	updater *updater  // used by the goroutine that appends an event
	asking  questions // of the running prompt

	mu     sync.Mutex
	cancel context.CancelFunc // of the running prompt; nil if there is none
}

// newSessionRequest is the request session/new. It decodes the servers itself, because
// acp-go-sdk takes a server that lacks a field for one of another kind.
type newSessionRequest struct {
	Cwd                   string      `json:"cwd"`
	MCPServers            []mcpServer `json:"mcpServers"`
	AdditionalDirectories []string    `json:"additionalDirectories"`
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

// newSession starts a session for a folder. The first prompt creates its sandbox.
func (s *server) newSession(ctx context.Context, params json.RawMessage) (work, error) {
	req, err := decode[newSessionRequest](params)
	if err != nil {
		return nil, err
	}
	if err := checkFolder(req.Cwd); err != nil {
		return nil, err
	}
	if len(req.AdditionalDirectories) > 0 {
		return nil, invalid("the sandbox of a session has one folder, cwd; leave additionalDirectories out")
	}
	var servers []runnerscripts.MCPServer
	for i, m := range req.MCPServers {
		server, err := m.server(i)
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
	}
	return func() (any, error) { return s.open(ctx, filepath.Clean(req.Cwd), servers) }, nil
}

func checkFolder(cwd string) error {
	if !filepath.IsAbs(cwd) {
		return invalid("cwd: %q is not absolute; give the absolute path of a folder", cwd)
	}
	switch info, err := os.Stat(cwd); {
	case errors.Is(err, os.ErrNotExist):
		return invalid("cwd: %s does not exist; make the folder first, or give another one", cwd)
	case err != nil:
		return invalid("cwd: %v; give a folder that can be read", err)
	case !info.IsDir():
		return invalid("cwd: %s is not a folder; give one", cwd)
	}
	// A session could change a symbolic link, and so the folder of the next session.
	if resolved, err := filepath.EvalSymlinks(cwd); err != nil || resolved != filepath.Clean(cwd) {
		return invalid("cwd: symbolic links lead from %s to %s; give the folder's real path", cwd, resolved)
	}
	return nil
}

// server returns the server in the form of a profile.
func (m mcpServer) server(i int) (runnerscripts.MCPServer, error) {
	out := runnerscripts.MCPServer{Name: m.Name}
	switch {
	case m.Name == "":
		return out, invalid("mcpServers[%d]: the server has no name; give it one", i)
	case m.Type == "" || m.Type == "stdio":
		if m.Command == "" {
			return out, invalid("mcpServers[%d]: server %q has no command; give it one, or the type http and a url", i, m.Name)
		}
		out.Command = append([]string{m.Command}, m.Args...)
		for _, e := range m.Env {
			out.Env = with(out.Env, e.Name, e.Value)
		}
	case m.Type == "http":
		if m.URL == "" {
			return out, invalid("mcpServers[%d]: server %q has no url; give it one", i, m.Name)
		}
		out.URL = m.URL
		for _, h := range m.Headers {
			out.Headers = with(out.Headers, h.Name, h.Value)
		}
	default:
		return out, invalid("mcpServers[%d]: server %q: agentenv passes no servers of the type %q on; use stdio or http", i, m.Name, m.Type)
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

// open opens the session and registers it.
func (s *server) open(ctx context.Context, folder string, servers []runnerscripts.MCPServer) (any, error) {
	cfg, err := s.cfg.Configure(ctx, folder, servers)
	if err != nil {
		return nil, err
	}
	if err := cfg.Environment.Profile.Check(); err != nil {
		return nil, invalid("%v", err)
	}
	p := &paths{folder: folder}
	create := cfg.Create
	if create == nil {
		create = environment.Create
	}
	cfg.Create = func(ctx context.Context, cfg environment.Config) (*environment.Environment, error) {
		env, err := create(ctx, cfg)
		if err == nil {
			p.found(env.Primitive().Paths().Workspace)
		}
		return env, err
	}
	// The editor asks the user, who may take any time.
	cfg.Environment.OnPermission, cfg.Environment.PermissionTimeout = environment.AnswerLater, -1
	cfg.RejectBusy = true
	c := &conversation{server: s, paths: p, updater: newUpdater(p, s.log, s.cfg.Mode)}
	telling := context.WithoutCancel(ctx) // events are sent even after a cancellation
	cfg.Store = store.NewStream(func(ev runnerscripts.Event) error { return c.take(telling, ev) })
	if c.agent, err = session.Open(ctx, cfg); err != nil {
		return nil, err
	}
	c.id = acp.SessionId(c.agent.ID())
	if err := s.add(c); err != nil {
		return nil, err
	}
	return acp.NewSessionResponse{SessionId: c.id, Modes: s.modes()}, nil
}

// modes returns the modes that the editor may choose from; nil if they are unknown.
func (s *server) modes() *acp.SessionModeState {
	if len(s.cfg.Modes) == 0 {
		return nil
	}
	state := &acp.SessionModeState{CurrentModeId: acp.SessionModeId(s.cfg.Mode)}
	for _, id := range s.cfg.Modes {
		state.AvailableModes = append(state.AvailableModes, acp.SessionMode{Id: acp.SessionModeId(id), Name: id})
	}
	return state
}

func (s *server) setMode(ctx context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.SetSessionModeRequest](params)
	if err != nil {
		return nil, err
	}
	c, err := s.find(req.SessionId)
	if err != nil {
		return nil, err
	}
	mode := string(req.ModeId)
	if mode == "" || len(s.cfg.Modes) > 0 && !slices.Contains(s.cfg.Modes, mode) {
		return nil, invalid("the agent has no mode %q; choose one of %s", mode, strings.Join(s.cfg.Modes, ", "))
	}
	return func() (any, error) {
		if err := c.agent.SetOptions(ctx, session.Options{Mode: mode}); err != nil {
			return nil, err
		}
		c.updater.setMode(mode)
		return acp.SetSessionModeResponse{}, nil
	}, nil
}

func (s *server) setModel(ctx context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.UnstableSetSessionModelRequest](params)
	if err != nil {
		return nil, err
	}
	c, err := s.find(req.SessionId)
	if err != nil {
		return nil, err
	}
	if req.ModelId == "" {
		return nil, invalid("modelId is empty; name a model")
	}
	return func() (any, error) {
		return acp.UnstableSetSessionModelResponse{}, c.agent.SetOptions(ctx, session.Options{Model: string(req.ModelId)})
	}, nil
}

// paths are the folder of the editor, and the workspace of the sandbox, which may
// have another path.
type paths struct {
	folder string

	mu        sync.Mutex
	workspace string
}

// found sets the workspace of a new sandbox.
func (p *paths) found(workspace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workspace = workspace
}

// editor returns the editor's path for a path of the sandbox. Paths outside the workspace stay
// the same.
func (p *paths) editor(name string) string {
	p.mu.Lock()
	workspace := p.workspace
	p.mu.Unlock()
	if name == "" {
		return name
	}
	if !filepath.IsAbs(name) {
		return filepath.Join(p.folder, name)
	}
	if rel, err := filepath.Rel(workspace, name); workspace != "" && err == nil && filepath.IsLocal(rel) {
		return filepath.Join(p.folder, rel)
	}
	return name
}
