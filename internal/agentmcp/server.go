// Package agentmcp lets agents start other agents: it serves the Model Context Protocol over sessions of a host. An agent gets
// it at the gateway of its sandbox, an editor on standard input and output.
//
// Where to look: server.go serves, tools.go has the tools and their texts, family.go starts and ends sessions within the
// limits of the agent that asks, configure.go has what of that agent holds for them, report.go reads how far they are.
package agentmcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Host has the sessions. It is a *session.Host.
type Host interface {
	Create(ctx context.Context, cfg session.Config) (*session.AgentSession, error)
	OpenAs(ctx context.Context, id string, change func(*session.Config)) (*session.AgentSession, error)
	Opened(id string) *session.AgentSession
	Unload(ctx context.Context, id string) error
	Destroy(ctx context.Context, id string) error
	List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error]
	Store() store.Store
}

var _ Host = (*session.Host)(nil)

// Config configures a server. The zero value works.
type Config struct {
	// Complete adds to the configuration of an agent what its file leaves open, such as the keys of this machine. Nil adds
	// nothing.
	Complete func(cfg *environment.Config)
	// OnPermission answers the permission requests of the started agents. Nil means that the OnPermission of the agent that
	// started them does.
	OnPermission func(ctx context.Context, agent string, req environment.PermissionRequest) environment.PermissionDecision
	// Version is that of the program.
	Version string
	// Logger may be nil.
	Logger hclog.Logger
}

// Server serves the tools to any number of agents. Its methods may be called from several goroutines at once.
type Server struct {
	cfg  Config
	host atomic.Pointer[Host]
}

// New returns a server. It needs a host before the first tool is called; see [Server.Use].
func New(cfg Config) *Server {
	if cfg.Complete == nil {
		cfg.Complete = func(*environment.Config) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Server{cfg: cfg}
}

// Use sets the host: it needs the server for its own configuration, so it is made later.
func (s *Server) Use(host Host) { s.host.Store(&host) }

// Tools is for environment.Config.AgentTools.
func (s *Server) Tools(ctx context.Context, of environment.Delegator) (environment.AgentTools, error) {
	return s.newFamily(ctx, of, of.Config.SessionID)
}

// Serve serves a client over a stream of lines until it leaves or ctx is done. Then it ends the sessions that the client has
// started. The delegation, the permissions and the budget of a session of cfg hold for all of them.
func (s *Server) Serve(ctx context.Context, cfg environment.Config, in io.ReadCloser, out io.WriteCloser) error {
	cfg.AgentTools = s.Tools
	of := environment.Delegator{Config: cfg, Meter: environment.NewMeter(cfg.Budget)}
	f, err := s.newFamily(ctx, of, uuid.NewString())
	if err != nil {
		return err
	}
	err = f.server.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		err = nil // the client has left, or this program ends
	}
	return errors.Join(err, f.Close())
}

// The headers of requests. An agent's own client sends them, or a proxy before it.
const (
	headerSession = "X-Agent-Session-Id"
	headerTags    = "X-Agent-Tags"
	headerDemands = "X-Additional-Demands"
)

// ServeHTTP serves streamable HTTP without sessions of the protocol.
func (f *family) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch id := r.Header.Get(headerSession); {
	case id != "" && id != f.parent:
		http.Error(w, "agentenv: "+headerSession+" names another session than that of the token", http.StatusForbidden)
	case r.Header.Get(headerDemands) != "":
		http.Error(w, fmt.Sprintf("agentenv: %s is not supported: the configuration of an agent chooses its sandbox; leave it out, or choose by %s", headerDemands, headerTags), http.StatusBadRequest)
	default:
		f.http.ServeHTTP(w, r)
	}
}
