// Package acpserver speaks the Agent Client Protocol, version 1, as the agent: its clients, such as editors, work with the
// sessions of a session.Host.
//
// The server sends an event of a session as the update of the same name, and logs an event that the protocol has no update for.
// Events come from the log of the session, so that a slow client holds up nobody, and a client that has lost its connection
// misses none: session/load sends what was said so far, and the events of a running query go on. The server serves any number of
// requests at once. It accepts prompts and cancellations in the order in which the client sent them.
//
// Where to look: rpc.go reads requests and answers them, errors.go says errors in the protocol's form; session.go has the methods
// that begin and end sessions, list.go lists them; conversation.go follows the events of a session, update.go converts them, and
// replay.go those of the past; prompt.go runs prompts, permission.go and elicitation.go ask the user, options.go has what the
// user can choose.
package acpserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// Config configures a connection. Host and Configure are required.
type Config struct {
	// Name, Title and Version identify the server to the client.
	Name, Title, Version string
	// Host has the sessions.
	Host *session.Host
	// User is the name of the client's user, for the permission requests that they answer.
	User string
	// EndHost shuts Host down when the connection ends. Otherwise queries go on without the client.
	EndHost bool
	// Metadata are the keys and values that sessions must have. Others do not exist for the client.
	Metadata map[string]string
	// Configure returns the configuration of a new session, with the request's Servers in its profile, or refuses it. The server
	// adds metadata, and refuses a prompt while a query runs.
	Configure func(ctx context.Context, r Request) (session.Config, error)
	// Modes returns the permission modes of an agent, the initial one first. Without modes the server passes any mode to the
	// agent. Nil knows none.
	Modes func(agent string) []string
	// Directories says that agents reach a directory of the client beside the session's folder. Otherwise the server refuses
	// additional directories.
	Directories bool
	// Admit is called before each request, and its error refuses the request. Nil admits all.
	Admit func() error
	// AdmitServers refuses, with an error, that a client adds n MCP servers to a session. Nil admits all.
	AdmitServers func(n int) error
	// Describe returns how the client sees an error of a session. Nil shows its text.
	Describe func(error) apierror.Error
	// Logger receives events and errors that the client does not get; nil means no logging.
	Logger hclog.Logger
}

// Request is what a client asks of a new session.
type Request struct {
	// Folder is the absolute path that the client calls the session's working directory.
	Folder string
	// Servers are the MCP servers that the client adds to the profile.
	Servers []runnerscripts.MCPServer
	// Extra is the value of the key agentenv in the request's _meta; empty if there is none.
	Extra json.RawMessage
}

// replyGrace is how long a client may take to read the last answers when the connection ends.
const replyGrace = 5 * time.Second

// Serve answers the requests of a client until the stream ends, which is no error, until ctx is done, or until a message cannot
// be sent. A pending Read cannot be cancelled: its goroutine lasts until the stream ends.
func Serve(ctx context.Context, cfg Config, stream Stream) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	answers, feed := io.Pipe()
	out := &sender{stream: stream, broken: end}
	s := &server{
		cfg: cfg.withDefaults(), out: out, conn: acp.NewConnection(nil, out, answers),
		sessions: make(map[acp.SessionId]*conversation),
		inflight: make(map[string]context.CancelCauseFunc), silent: make(chan struct{}),
	}
	s.log = s.cfg.Logger
	s.conn.SetLogger(slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- s.read(life, stream, feed) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-life.Done():
		err = context.Cause(life)
	}
	giveUp := time.AfterFunc(replyGrace, func() { close(s.silent) })
	defer giveUp.Stop()
	s.close()
	if cfg.EndHost {
		err = errors.Join(err, s.shutdown(ctx))
	} else {
		end(errGone)
	}
	s.sayFarewell()
	end(errGone)
	return errors.Join(err, feed.Close()) // the client will not answer its open requests
}

// withDefaults returns the configuration with zero values replaced.
func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.AdmitServers == nil {
		c.AdmitServers = func(int) error { return nil }
	}
	if c.Modes == nil {
		c.Modes = func(string) []string { return nil }
	}
	if c.Admit == nil {
		c.Admit = func() error { return nil }
	}
	if c.Describe == nil {
		c.Describe = describe
	}
	return c
}

// server is one connection.
type server struct {
	cfg  Config
	log  hclog.Logger
	out  *sender
	conn *acp.Connection // sends updates and requests to the client

	calls  sync.WaitGroup // running requests, and readers of events
	silent chan struct{}  // closed when writes to a disconnected client are given up

	mu       sync.Mutex
	closed   bool
	forms    bool // the client shows forms
	sessions map[acp.SessionId]*conversation
	inflight map[string]context.CancelCauseFunc // by the id of the request
	pages    pages
}

// agentMethodSessionDelete is a method that acp-go-sdk does not know yet.
const agentMethodSessionDelete = "session/delete"

func (s *server) handlers() map[string]handler {
	return map[string]handler{
		acp.AgentMethodInitialize:             s.initialize,
		acp.AgentMethodAuthenticate:           s.authenticate,
		acp.AgentMethodSessionNew:             s.newSession,
		acp.AgentMethodSessionLoad:            s.loadSession,
		acp.AgentMethodSessionResume:          s.resumeSession,
		acp.AgentMethodSessionList:            s.listSessions,
		acp.AgentMethodSessionClose:           s.closeSession,
		agentMethodSessionDelete:              s.deleteSession,
		acp.AgentMethodSessionPrompt:          s.prompt,
		acp.AgentMethodSessionSetMode:         s.setMode,
		acp.AgentMethodSessionSetModel:        s.setModel,
		acp.AgentMethodSessionSetConfigOption: s.setConfigOption,
	}
}

// capabilities are those of acp.AgentCapabilities, with one that acp-go-sdk does not know yet.
type capabilities struct {
	LoadSession         bool                   `json:"loadSession"`
	McpCapabilities     acp.McpCapabilities    `json:"mcpCapabilities"`
	PromptCapabilities  acp.PromptCapabilities `json:"promptCapabilities"`
	SessionCapabilities sessionCapabilities    `json:"sessionCapabilities"`
}

type sessionCapabilities struct {
	acp.SessionCapabilities
	Delete struct{} `json:"delete"`
}

// initialized is an acp.InitializeResponse with these capabilities.
type initialized struct {
	ProtocolVersion   acp.ProtocolVersion `json:"protocolVersion"`
	AgentInfo         acp.Implementation  `json:"agentInfo"`
	AuthMethods       []acp.AuthMethod    `json:"authMethods"`
	AgentCapabilities capabilities        `json:"agentCapabilities"`
}

// initialize returns the capabilities of the server. There is one version of the protocol.
func (s *server) initialize(_ context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.InitializeRequest](params)
	if err != nil {
		return nil, err
	}
	if c := req.ClientInfo; c != nil {
		s.log.Info("a client has connected", "name", c.Name, "version", c.Version)
	}
	forms := req.ClientCapabilities.Elicitation != nil && req.ClientCapabilities.Elicitation.Form != nil
	s.mu.Lock()
	s.forms = forms
	s.mu.Unlock()
	title := s.cfg.Title
	of := acp.SessionCapabilities{
		Close: &acp.SessionCloseCapabilities{}, List: &acp.SessionListCapabilities{}, Resume: &acp.SessionResumeCapabilities{},
	}
	if s.cfg.Directories {
		of.AdditionalDirectories = &acp.SessionAdditionalDirectoriesCapabilities{}
	}
	return func(context.Context) (any, error) {
		return initialized{
			ProtocolVersion: acp.ProtocolVersionNumber,
			AgentInfo:       acp.Implementation{Name: s.cfg.Name, Title: &title, Version: s.cfg.Version},
			AuthMethods:     []acp.AuthMethod{},
			AgentCapabilities: capabilities{
				LoadSession:         true,
				McpCapabilities:     acp.McpCapabilities{Http: true},
				PromptCapabilities:  acp.PromptCapabilities{EmbeddedContext: true, Image: true},
				SessionCapabilities: sessionCapabilities{SessionCapabilities: of},
			},
		}, nil
	}, nil
}

// showsForms reports whether the client shows forms.
func (s *server) showsForms() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forms
}

func (s *server) authenticate(context.Context, json.RawMessage) (work, error) {
	return nil, Invalid("agentenv itself needs no authentication; give the agent its key in its environment, for example with --env")
}

// close makes the server accept no requests any more.
func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// shutdown closes all sessions of the host, each with its sandbox unless that is kept, and removes those of the client in which
// nothing was said.
func (s *server) shutdown(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	s.mu.Lock()
	var open []*conversation
	for _, c := range s.sessions {
		open = append(open, c)
	}
	s.mu.Unlock()
	err := s.cfg.Host.Shutdown(ctx)
	for _, c := range open {
		c.asking.withdraw() // those of kept sandboxes
		err = errors.Join(err, c.forget(ctx))
	}
	return err
}

// sayFarewell waits until the last requests are answered, at most as long as replyGrace: the
// client may not read any more.
func (s *server) sayFarewell() {
	answered := make(chan struct{})
	go func() { s.calls.Wait(); close(answered) }()
	timer := time.NewTimer(replyGrace)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
		s.log.Warn("the client does not read the last answers")
	}
}

// withServers returns the servers of a profile with those of a client, which replace others of the same name.
func withServers(own, given []runnerscripts.MCPServer) []runnerscripts.MCPServer {
	names := make(map[string]bool)
	for _, m := range given {
		names[m.Name] = true
	}
	var all []runnerscripts.MCPServer
	for _, m := range own {
		if !names[m.Name] {
			all = append(all, m)
		}
	}
	return append(all, given...)
}
