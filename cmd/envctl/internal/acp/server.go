// Package acp lets an editor run agents in sandboxes: it speaks the Agent
// Client Protocol, version 1, as the agent, and each session of the editor is a
// session of package session.
//
// The server sends an event of a session as the update of the same name, and logs an
// event that the protocol has no update for. It serves any number of requests at once.
// It accepts prompts and cancellations in the order in which the editor sent them.
package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// Config configures a server. Configure is required.
type Config struct {
	// Name, Title and Version identify the server to the editor.
	Name, Title, Version string
	// Configure returns the configuration of a new session for a folder, which exists and whose
	// path is absolute. The server replaces the Store of the configuration and the OnPermission
	// of its environment: it asks the editor, sends it the events, and stores none.
	Configure func(ctx context.Context, folder string, servers []runnerscripts.MCPServer) (session.Config, error)
	// Modes are the permission modes that the editor may choose from, and Mode is the initial
	// one. Without Modes the server passes any mode to the agent.
	Modes []string
	Mode  string
	// Logger receives events and errors that the editor does not get; nil means no logging.
	Logger hclog.Logger
}

// maxMessage is the longest message of an editor, in bytes: files may be embedded.
const maxMessage = 64 << 20

// replyGrace is how long an editor may take to read the last answers when all
// sandboxes have ended.
const replyGrace = 5 * time.Second

// errGone: the editor has closed its end.
var errGone = errors.New("the editor has gone")

// Serve reads requests from in and writes answers to out until in ends, which is no error, until
// ctx is done, or until a write to out fails. Then it ends all sessions and waits for their end.
// A pending read of in cannot be cancelled: its goroutine lasts until in ends.
func Serve(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers, feed := io.Pipe()
	w := &lineWriter{w: out, broken: cancel}
	s := &server{
		cfg: cfg, out: w, log: cfg.Logger,
		conn:     acp.NewConnection(nil, w, answers),
		sessions: make(map[acp.SessionId]*conversation),
		inflight: make(map[string]context.CancelFunc), silent: make(chan struct{}),
	}
	defer context.AfterFunc(ctx, s.giveUp)()
	s.conn.SetLogger(slog.New(slog.DiscardHandler))
	if s.log == nil {
		s.log = hclog.NewNullLogger()
	}
	ended := make(chan error, 1)
	go func() { ended <- s.read(ctx, in, feed) }()
	var err error
	select {
	case err = <-ended:
		cancel(errGone)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	err = errors.Join(err, s.closeAll())
	err = errors.Join(err, feed.Close()) // the editor will not answer its open requests
	s.sayFarewell()
	return err
}

// giveUp unblocks, after a while, goroutines that wait for a disconnected editor.
func (s *server) giveUp() {
	time.AfterFunc(replyGrace, func() { close(s.silent) })
}

// server is one connection.
type server struct {
	cfg  Config
	log  hclog.Logger
	out  *lineWriter
	conn *acp.Connection // sends updates and requests to the editor

	calls  sync.WaitGroup // running requests
	silent chan struct{}  // closed when writes to a disconnected editor are given up

	mu       sync.Mutex
	closed   bool
	sessions map[acp.SessionId]*conversation
	inflight map[string]context.CancelFunc // by the id of the request
}

// handler accepts a request and returns the work for it. Handlers are called in the order of the
// requests; their work runs concurrently.
type handler func(ctx context.Context, params json.RawMessage) (work, error)

// work answers a request.
type work func() (any, error)

func (s *server) handlers() map[string]handler {
	return map[string]handler{
		acp.AgentMethodInitialize:      s.initialize,
		acp.AgentMethodAuthenticate:    s.authenticate,
		acp.AgentMethodSessionNew:      s.newSession,
		acp.AgentMethodSessionPrompt:   s.prompt,
		acp.AgentMethodSessionSetMode:  s.setMode,
		acp.AgentMethodSessionSetModel: s.setModel,
		acp.AgentMethodSessionClose:    s.closeSession,
	}
}

// initialize returns the capabilities of the server. There is one version of the protocol.
func (s *server) initialize(_ context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.InitializeRequest](params)
	if err != nil {
		return nil, err
	}
	if c := req.ClientInfo; c != nil {
		s.log.Info("an editor has connected", "name", c.Name, "version", c.Version)
	}
	title := s.cfg.Title
	return func() (any, error) {
		return acp.InitializeResponse{
			ProtocolVersion: acp.ProtocolVersionNumber,
			AgentInfo:       &acp.Implementation{Name: s.cfg.Name, Title: &title, Version: s.cfg.Version},
			AuthMethods:     []acp.AuthMethod{},
			AgentCapabilities: acp.AgentCapabilities{
				McpCapabilities:     acp.McpCapabilities{Http: true},
				PromptCapabilities:  acp.PromptCapabilities{EmbeddedContext: true},
				SessionCapabilities: acp.SessionCapabilities{Close: &acp.SessionCloseCapabilities{}},
			},
		}, nil
	}, nil
}

func (s *server) authenticate(context.Context, json.RawMessage) (work, error) {
	return nil, invalid("agentenv itself needs no authentication; give the agent its key in its environment, for example with --env")
}

// add registers a session. If the connection has ended meanwhile, it closes the session and
// returns an error.
func (s *server) add(c *conversation) error {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.sessions[c.id] = c
	}
	s.mu.Unlock()
	if closed {
		return errors.Join(errGone, c.agent.Close())
	}
	return nil
}

// find returns the session of a request.
func (s *server) find(id acp.SessionId) (*conversation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.sessions[id]; c != nil {
		return c, nil
	}
	return nil, &acp.RequestError{
		Code: codeNotFound, Message: fmt.Sprintf("begin a session with session/new: there is none with the id %q", id),
	}
}

// closeSession ends a session and its sandbox.
func (s *server) closeSession(_ context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.CloseSessionRequest](params)
	if err != nil {
		return nil, err
	}
	c, err := s.find(req.SessionId)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	delete(s.sessions, c.id)
	s.mu.Unlock()
	return func() (any, error) { return acp.CloseSessionResponse{}, c.agent.Close() }, nil
}

// closeAll ends all sessions, each with its sandbox. No session can be added afterwards.
func (s *server) closeAll() error {
	s.mu.Lock()
	s.closed = true
	var open []*conversation
	for _, c := range s.sessions {
		open = append(open, c)
	}
	clear(s.sessions)
	s.mu.Unlock()
	errs := make([]error, len(open))
	var closing sync.WaitGroup
	for i, c := range open {
		closing.Go(func() {
			if err := c.agent.Close(); err != nil {
				errs[i] = fmt.Errorf("session %s: %w", c.id, err)
			}
		})
	}
	closing.Wait()
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}

// sayFarewell waits until the last requests are answered, at most as long as replyGrace: the
// editor may not read any more.
func (s *server) sayFarewell() {
	answered := make(chan struct{})
	go func() { s.calls.Wait(); close(answered) }()
	timer := time.NewTimer(replyGrace)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
		s.log.Warn("the editor does not read the last answers")
	}
}
