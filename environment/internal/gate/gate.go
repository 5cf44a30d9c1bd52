// Package gate serves a sandbox its gateway: to the models and the coordinator, whose keys stay on this machine, and to the
// hosts that it may reach. Package gateway decides what passes.
package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/environment/internal/secrets"
	"github.com/agentenv-dev/agentenv/executor/rpc"
	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// addressReuseTimeout is how long the address of a dead program may still be in use; Open retries after
// each addressReusePause.
const (
	addressReuseTimeout = 2 * time.Second
	addressReusePause   = 50 * time.Millisecond
)

// maxRefusals is how many refusals wait for a query to report them. The log has all of them.
const maxRefusals = 16

// Config says what the gateway of a sandbox serves. The zero value needs none.
type Config struct {
	// Credentials name keys of model APIs. Record and Replay are files of model calls.
	Credentials    map[string]gateway.Credential
	Record, Replay string
	Models         gateway.ModelPolicy
	Meter          *gateway.Meter
	// AllowHosts are the hosts that processes in the sandbox reach through the proxy; nil means no proxy.
	AllowHosts []string
	// Coordinator is what executors reach as the session SessionID; the zero value means none.
	Coordinator gateway.Coordinator
	SessionID   string
	// Tools are served to the agent; nil for none. The gate owns them, also if Open fails.
	Tools Tools
	// Executor is the host of an executor that uses its JSON-RPC; nil for none. Deliver are the names
	// of the Credentials that the executor may get.
	Executor *rpc.Config
	Deliver  []string
	// Before is the gateway of an earlier program; nil for none. Its address is used again, because an agent that still
	// runs knows no other.
	Before *runnerscripts.Gateway
	// Wait makes agents wait for the gateway of the next program.
	Wait bool
	// Audit gets each use of a key and each refused connection.
	Audit *audit.Log
	// Hold judges the tool calls in the answers of models; nil for none.
	Hold   func(ctx context.Context, tool string, input json.RawMessage) (refusal string)
	Logger hclog.Logger // may be nil
}

// Tools are tools of this program for the agent; see environment.AgentTools.
type Tools interface {
	http.Handler
	Interrupt(ctx context.Context)
	SetAllowHosts(hosts []string)
	Close() error
}

// Gate is an open gateway; the zero value is none. Its methods but Secrets may be called from several goroutines at once.
type Gate struct {
	// At is where processes in the sandbox reach it; nil for none.
	At *runnerscripts.Gateway

	refusals chan string // of the proxy; nil for no proxy
	audit    *audit.Log
	server   *gateway.Gateway
	tools    Tools // nil for none
	// executors is the host of an executor; nil for none.
	executors *rpc.Service
	grant     rpc.Grant // of the executor
	secrets   secrets.Found
	file      *os.File // of the recording; nil for none
	serving   sync.WaitGroup
}

// Open serves the gateway in the sandbox, if that needs one, until Close. ctx covers the opening only. Errors of the
// configuration are configfile.ErrInvalid.
func Open(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config) (_ *Gate, err error) {
	g := &Gate{tools: cfg.Tools, audit: cfg.Audit}
	if len(cfg.Credentials) == 0 && cfg.Replay == "" && cfg.AllowHosts == nil && cfg.Coordinator.IsZero() && cfg.Tools == nil && cfg.Executor == nil {
		return g, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	to := gateway.Config{
		Upstreams: map[string]gateway.Upstream{}, Models: cfg.Models, Meter: cfg.Meter, AllowHosts: cfg.AllowHosts, Hold: cfg.Hold, Logger: cfg.Logger,
		OnKey: func(name, method, path string) {
			g.audit.Add(audit.Entry{Event: audit.Credential, Credential: name, Request: method + " " + path})
		},
	}
	if cfg.Tools != nil {
		to.Tools = cfg.Tools
	}
	if cfg.AllowHosts != nil {
		g.refusals = make(chan string, maxRefusals)
		to.OnRefused = g.refused
	}
	if cfg.Replay != "" {
		cfg.Credentials = nil
	}
	if err := g.openFile(cfg, &to, p.Paths()); err != nil {
		return nil, err
	}
	for name, c := range cfg.Credentials {
		up, err := c.Upstream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", configfile.ErrInvalid, err)
		}
		to.Upstreams[name] = up
		g.secrets.Hide(up.Key)
	}
	if !cfg.Coordinator.IsZero() {
		if to.Coordinator, err = cfg.Coordinator.Open(ctx, cfg.SessionID); err != nil {
			return nil, fmt.Errorf("%w: %w", configfile.ErrInvalid, err)
		}
		for _, key := range to.Coordinator.Keys() {
			g.secrets.Hide(key)
		}
	}
	token := g.host(cfg, &to)
	if cfg.Before != nil {
		to.Token = cfg.Before.Token
	}
	if g.server, err = gateway.New(to); err != nil { //nolint:contextcheck // it outlives ctx, until Close
		return nil, fmt.Errorf("%w: %w", configfile.ErrInvalid, err)
	}
	l, err := cfg.listen(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("open the gateway in the sandbox: %w", err)
	}
	g.serve(l, cfg.Logger)
	g.At.Executor = token
	g.At.Wait = cfg.Wait
	return g, nil
}

// session is the name of the one session of a gate.
const session = "session"

// host serves the JSON-RPC of an executor, if there is one, and returns its token.
func (g *Gate) host(cfg Config, to *gateway.Config) (token string) {
	if cfg.Executor == nil {
		return ""
	}
	keys := to.Upstreams
	cfg.Executor.Credential = func(_ context.Context, name string) (string, error) {
		up, ok := keys[name]
		if !ok {
			return "", errors.New("a replayed session has no keys")
		}
		return up.Key, nil
	}
	cfg.Executor.Audit = func(r rpc.Record) {
		if r.Outcome == rpc.Delivered { // the query knows what was allowed and denied
			g.audit.Add(audit.Entry{Event: audit.Credential, Credential: r.Subject, Request: r.Method})
		}
	}
	g.executors = rpc.NewService(*cfg.Executor)
	to.Executors = g.executors
	grant := rpc.Grant{Session: session, Credentials: cfg.Deliver}
	if cfg.Before != nil {
		grant.Token = cfg.Before.Executor
	}
	grant.Token = g.executors.Tokens.Issue(grant)
	g.grant = grant
	g.secrets.Hide(grant.Token)
	return grant.Token
}

// Executor returns the executor that uses the JSON-RPC of the gate; nil if none may.
func (g *Gate) Executor() *rpc.Remote {
	if g.executors == nil {
		return nil
	}
	return g.executors.Remote(session)
}

// anyPort makes the system choose the port.
const anyPort = "127.0.0.1:0"

// listen listens in the sandbox: on the address of a dead program, if there is one, or on another one if a living program
// serves that.
func (c Config) listen(ctx context.Context, p primitives.EnvironmentPrimitive) (net.Listener, error) {
	switch {
	case c.Before != nil:
		return listenAgain(ctx, p, c.Before.Address())
	case c.Wait:
		return listenForLong(ctx, p)
	}
	return primitives.Listen(ctx, p, "tcp", anyPort)
}

func listenAgain(ctx context.Context, p primitives.EnvironmentPrimitive, address string) (net.Listener, error) {
	l, err := primitives.Listen(ctx, p, "tcp", address)
	for began := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(began) < addressReuseTimeout && !patience.Wait(ctx.Done(), addressReusePause); {
		l, err = primitives.Listen(ctx, p, "tcp", address)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return listenForLong(ctx, p)
	}
	return l, err
}

// The ports from lastingPort to lastingPort+lastingPorts-1 are below those that Linux and macOS choose by default.
const (
	lastingPort  = 20_000
	lastingPorts = 10_000
)

// listenForLong listens on a port that the next program can use again: the system does not choose it for others meanwhile.
func listenForLong(ctx context.Context, p primitives.EnvironmentPrimitive) (net.Listener, error) {
	for range 16 {
		l, err := primitives.Listen(ctx, p, "tcp", fmt.Sprintf("127.0.0.1:%d", lastingPort+rand.IntN(lastingPorts))) //nolint:gosec // no secret
		switch {
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM): // the system forbids the port
			return primitives.Listen(ctx, p, "tcp", anyPort)
		case !errors.Is(err, syscall.EADDRINUSE):
			return l, err
		}
	}
	return primitives.Listen(ctx, p, "tcp", anyPort)
}

// openFile opens the file to record to or to replay.
func (g *Gate) openFile(cfg Config, to *gateway.Config, paths primitives.Paths) (err error) {
	to.Places = map[string]string{paths.Workspace: "<sandbox:workspace>", paths.Home: "<sandbox:home>", paths.Session: "<sandbox:session>"}
	switch {
	case cfg.Record != "":
		if g.file, err = gateway.OpenRecord(cfg.Record); err != nil {
			return fmt.Errorf("%w: record: %w", configfile.ErrInvalid, err)
		}
		to.Record = g.file
	case cfg.Replay != "":
		if g.file, err = input.Open(cfg.Replay); err != nil {
			return fmt.Errorf("%w: replay: %w", configfile.ErrInvalid, err)
		}
		to.Replay = g.file
	}
	return nil
}

// serve serves the listener until Close.
func (g *Gate) serve(l net.Listener, log hclog.Logger) {
	g.At = g.server.At(l.Addr())
	g.secrets.Hide(g.At.Token)
	g.secrets.Hide(g.At.ProxyCredential())
	g.serving.Go(func() {
		if err := g.server.Serve(l); err != nil && log != nil {
			log.Debug("the gateway has ended", "error", err) // it ends with the sandbox
		}
	})
}

// Interrupt interrupts what the tools have started.
func (g *Gate) Interrupt(ctx context.Context) {
	if g.tools != nil {
		g.tools.Interrupt(ctx)
	}
}

// Close revokes the token and returns when the server, and what the tools have started, have ended.
func (g *Gate) Close() error {
	var err error
	if g.executors != nil {
		g.executors.End(session)
	}
	if g.server != nil {
		err = g.server.Close()
		g.serving.Wait()
	}
	if g.file != nil {
		err = errors.Join(err, g.file.Close())
	}
	if g.tools != nil {
		err = errors.Join(err, g.tools.Close())
	}
	return err
}

// Secrets returns the keys and tokens that the gateway knows.
func (g *Gate) Secrets() []string { return g.secrets.Values() }

// Renew restarts the lifetime of the tokens.
func (g *Gate) Renew() {
	if g.server != nil {
		g.server.Renew()
	}
	if g.executors != nil {
		g.executors.Tokens.Issue(g.grant)
	}
}

// Refusals delivers what the proxy has refused, for the running query; nil if there is no proxy.
func (g *Gate) Refusals() <-chan string { return g.refusals }

// refused notes a refusal in the audit log and queues it, or drops it if the queue is full.
func (g *Gate) refused(host, reason string) {
	g.audit.Add(audit.Entry{Event: audit.Refused, Host: host, Reason: reason})
	select {
	case g.refusals <- fmt.Sprintf("the sandbox may not reach %s: %s", host, reason):
	default:
	}
}

// HasProxy reports whether processes in the sandbox reach hosts through the gateway.
func (g *Gate) HasProxy() bool { return g.refusals != nil }

// SetAllowHosts replaces the hosts of a proxy, also for connections that are open, and for what the tools start.
func (g *Gate) SetAllowHosts(hosts []string) error {
	err := g.server.SetAllowHosts(hosts)
	if err == nil && g.tools != nil {
		g.tools.SetAllowHosts(hosts)
	}
	return err
}
