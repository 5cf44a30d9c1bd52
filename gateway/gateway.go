// Package gateway lets an agent in a sandbox use models without having their keys. A [Gateway]
// is an HTTP server on a listener inside the sandbox, see primitives.Listen. The agent sends a
// session token in place of the key. The gateway checks the token, replaces it by the key and
// passes the request on.
//
// Where to look: gateway.go serves and checks tokens; proxy.go has the allowed methods and
// paths and adds the key (sign); call.go applies the policy to a call and counts it; share.go
// divides memory among gateways; budget.go
// has the budgets; credential.go reads keys; replay.go records and replays calls; outward.go is
// the proxy to allowed hosts, package internal/egress its rules; runnergateway.go passes requests
// of executors on to a coordinator, coordinator.go configures it; tools.go serves tools of the
// host program. internal/policy changes calls, internal/meter reads usage from answers,
// internal/prices has the prices, and internal/replay
// the file format of recordings. Package credentials stores keys.
package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/netutil"

	"github.com/agentenv-dev/agentenv/gateway/internal/replay"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TokenLife is the default lifetime of a session token; see [Config].
const TokenLife = 24 * time.Hour

// Limits of one gateway. Requests above a limit wait or get the matching HTTP error.
const (
	maxConns    = 256
	maxRequests = 64       // passed on at once
	maxBody     = 64 << 20 // of a request, in bytes
	maxTools    = 32       // requests to Config.Tools at once
	maxToolBody = 4 << 20  // of such a request, in bytes
	maxHeader   = 64 << 10 // in bytes

	maxExecutors = 64 // requests to Config.Executors at once

	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second // between two parts of a request's body
	idleTimeout   = 2 * time.Minute
	writeTimeout  = 5 * time.Minute // for one part of an answer that the agent does not read
	closeTimeout  = 5 * time.Second // for all requests to end after they were cancelled
)

// ErrConfig is an invalid configuration; the text says what to change. It wraps fs.ErrInvalid.
var ErrConfig = fmt.Errorf("gateway: %w", fs.ErrInvalid)

// Upstream is a model API and its key.
type Upstream struct {
	// API is the kind of API.
	API runnerscripts.ModelAPI
	// URL is the base address in the form that an agent's own setting uses. Empty means the
	// address of the API's vendor.
	URL string
	// Key is added to requests. It is never logged and never part of an error.
	Key string
}

// Config configures a gateway.
type Config struct {
	// Upstreams are served below "/" and their name, which has letters, digits, '_', '.'
	// and '-'.
	Upstreams map[string]Upstream
	// Token is the token of an earlier gateway of this session, which the running agent still
	// uses. Empty means a new token.
	Token string
	// TokenLife is the lifetime of the token; zero means the constant TokenLife.
	TokenLife time.Duration
	// Models is the policy for calls. The zero value allows all models and removes the tools
	// that the API runs itself.
	Models ModelPolicy
	// Meter counts the usage and enforces the budget. Nil means a meter without limits.
	Meter *Meter
	// Record receives the model calls and their answers, without keys and tokens, as lines of
	// JSON.
	Record io.Writer
	// Replay is a recording made with Record. It answers in place of the APIs, and Upstreams
	// are not used. A call that is not in the recording ends the query with a [*NoMatchError].
	Replay io.Reader
	// AllowHosts are hosts that every process in the sandbox may reach by name, with the
	// gateway as HTTP proxy: "example.com", "*.example.com" (its subdomains),
	// "example.com:8443", or "*" for all hosts. The default ports are 80 and 443. Nil disables
	// the proxy; an empty list allows no host until SetAllowHosts does. Addresses outside the
	// public internet are refused even if an allowed name resolves to them.
	AllowHosts []string
	// Coordinator is the agent coordinator that executors reach; nil for none.
	Coordinator *Coordination
	// OnRefused is called when the proxy refuses a request, and OnKey when the key of an upstream,
	// or of the "coordinator", is added to a request, which has a method and a path. They must return at once, and may be
	// called from several goroutines. Nil ignores it.
	OnRefused func(host, reason string)
	OnKey     func(upstream, method, path string)
	// Hold judges the tool calls in the answers of models, before the agent gets them: a text refuses a
	// call and takes its place. It may wait, until ctx is done. Nil passes all calls.
	Hold func(ctx context.Context, tool string, input json.RawMessage) (refusal string)
	// Tools is served at ToolsPath to requests with the token, which it does not see: tools of the
	// host program for the agent. Its requests must end when their contexts do. Nil serves none.
	Tools http.Handler
	// Executors serves the requests of executors to runnerscripts.ExecutorPath. It checks their tokens
	// itself, before it reads their bodies, which it bounds. Nil refuses them.
	Executors http.Handler
	// Places maps paths of the sandbox to placeholders in a recording, so that a sandbox with
	// other paths can replay it.
	Places map[string]string
	// Logger logs refusals and failures, without keys, tokens and contents. Nil disables
	// logging.
	Logger hclog.Logger
}

// ToolsPath is where a gateway serves Config.Tools.
const ToolsPath = "/mcp"

// Gateway serves one session. Its methods may be called from several goroutines.
type Gateway struct {
	cfg       Config
	digest    [sha256.Size]byte // of the token
	server    *http.Server
	transport *http.Transport
	send      func(*http.Request) (*http.Response, error) // to an upstream
	// The constants, except in tests.
	bodyTimeout, writeTimeout, closeTimeout time.Duration
	stop                                    context.CancelFunc     // ends the contexts of all requests
	ended                                   func() <-chan struct{} // begins to wait for all requests; closed when they have ended
	recorder                                *replay.Recorder       // nil for none
	player                                  *replay.Player         // nil for none
	slots                                   chan struct{}          // one for each request that is passed on
	tools                                   chan struct{}          // one for each request to Config.Tools
	executors                               chan struct{}          // one for each request to Config.Executors
	share                                   *share                 // of the program's memory
	outward                                 *outward
	runner                                  *runnerGateway // nil for none
	revoke                                  func()         // removes the token from those of the program
	serving                                 sync.WaitGroup

	mu      sync.Mutex
	expires time.Time
	closed  bool
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`)

// makers returns the base addresses of the vendors' APIs.
func makers() map[runnerscripts.ModelAPI]string {
	return map[runnerscripts.ModelAPI]string{
		runnerscripts.APIAnthropic: "https://api.anthropic.com",
		runnerscripts.APIOpenAI:    "https://api.openai.com/v1",
		runnerscripts.APIGemini:    "https://generativelanguage.googleapis.com",
	}
}

// New returns a gateway with its own token. The caller must close it. Errors are [ErrConfig].
func New(cfg Config) (*Gateway, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.TokenLife == 0 {
		cfg.TokenLife = TokenLife
	}
	if cfg.Token == "" {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // it never fails
		cfg.Token = hex.EncodeToString(secret)
	}
	g := &Gateway{
		cfg: cfg, digest: sha256.Sum256([]byte(cfg.Token)), slots: make(chan struct{}, maxRequests), tools: make(chan struct{}, maxTools), executors: make(chan struct{}, maxExecutors), share: program.newShare(), bodyTimeout: bodyTimeout, writeTimeout: writeTimeout, closeTimeout: closeTimeout,
		expires: time.Now().Add(cfg.TokenLife),
		transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, DisableCompression: true,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: maxRequests, IdleConnTimeout: idleTimeout,
		},
	}
	g.send, g.ended = g.transport.RoundTrip, sync.OnceValue(g.awaitEnd)
	if err := g.openReplay(); err != nil {
		return nil, err
	}
	if cfg.Meter == nil {
		g.cfg.Meter = NewMeter(Budget{}, Used{})
	}
	if err := cfg.Models.Check(); err != nil {
		return nil, err
	}
	mux := make(routes, len(g.cfg.Upstreams))
	through := &calls{cfg: g.cfg, share: g.share}
	if _, taken := g.cfg.Upstreams[ToolsPath[1:]]; taken && cfg.Tools != nil {
		return nil, fmt.Errorf("%w: upstream %q: %s leads to tools; choose another name", ErrConfig, ToolsPath[1:], ToolsPath)
	}
	for name, up := range g.cfg.Upstreams {
		handler, err := g.proxy(name, up, through)
		if err != nil {
			return nil, err
		}
		mux[name] = handler
	}
	if err := g.addExecutors(mux); err != nil {
		return nil, err
	}
	var err error
	if g.outward, err = newOutward(g); err != nil {
		return nil, err
	}
	if cfg.Coordinator != nil {
		if _, taken := mux[coordinatorName]; taken {
			return nil, fmt.Errorf("%w: upstream %q: the name is that of the coordinator; give it another one", ErrConfig, coordinatorName)
		}
		g.runner = newRunnerGateway(g, cfg.Coordinator)
		mux[coordinatorName] = g.runner
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // the server waits for the body of a request that is refused unread; see also body
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.bodyTimeout))
		}
		if isOutward(r) {
			g.outward.ServeHTTP(w, r)
			return
		}
		if cfg.Tools != nil && r.URL.EscapedPath() == ToolsPath {
			g.serveTools(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // Close ends it
	g.stop = stop
	g.server = &http.Server{
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler:     handler, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ErrorLog: log.New(cfg.Logger.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
	}
	g.revoke = sync.OnceFunc(issued.add(g.digest))
	return g, nil
}

// addExecutors adds the route of executors. Its slots are its own: a request may wait for a user.
func (g *Gateway) addExecutors(to routes) error {
	if g.cfg.Executors == nil {
		return nil
	}
	name := strings.TrimPrefix(runnerscripts.ExecutorPath, "/")
	if to[name] != nil {
		return fmt.Errorf("%w: upstream %q: its path is that of executors; give it another name", ErrConfig, name)
	}
	to[name] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != runnerscripts.ExecutorPath {
			refuse(w, http.StatusNotFound, "not_found_error", "executors use the path "+runnerscripts.ExecutorPath)
			return
		}
		leave, ok := enter(r.Context(), g.executors)
		if !ok {
			return // the executor disconnected
		}
		defer leave()
		r = r.WithContext(r.Context())
		r.Body = &body{ReadCloser: r.Body, deadline: http.NewResponseController(w).SetReadDeadline, limit: callTime(r.ContentLength)}
		g.cfg.Executors.ServeHTTP(&answer{ResponseWriter: w, timeout: g.writeTimeout}, r)
	})
	return nil
}

// Serve serves the connections of l until [Gateway.Close] or an error of l, and closes l.
// After Close it returns nil.
func (g *Gateway) Serve(l net.Listener) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return l.Close()
	}
	g.serving.Add(1)
	g.mu.Unlock()
	defer g.serving.Done()
	if err := g.server.Serve(netutil.LimitListener(l, maxConns)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// At returns the settings with which an agent reaches the gateway served at address.
func (g *Gateway) At(address net.Addr) *runnerscripts.Gateway {
	at := &runnerscripts.Gateway{URL: "http://" + address.String(), Token: g.cfg.Token, Proxy: g.outward.on, APIs: map[runnerscripts.ModelAPI]string{}}
	for _, name := range slices.Sorted(maps.Keys(g.cfg.Upstreams)) {
		up := g.cfg.Upstreams[name]
		// An upstream with the API's own name takes precedence over others of that API, which count
		// in the order of their names.
		if _, ok := at.APIs[up.API]; !ok || name == string(up.API) {
			at.APIs[up.API] = "/" + name
		}
	}
	if c := g.cfg.Coordinator; c != nil {
		at.CoordinatorSession = c.session
	}
	return at
}

// Renew restarts the lifetime of the token.
func (g *Gateway) Renew() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expires = time.Now().Add(g.cfg.TokenLife)
}

// Close revokes the token, cancels running requests and returns when all have ended. If one does
// not end within some seconds, such as one whose Config.Record blocks, Close returns an error.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.revoke()
	err := g.server.Close()
	g.stop() // after the connections, so that no client gets an empty answer
	if errors.Is(err, net.ErrClosed) {
		err = nil // the sandbox closed the listener
	}
	timeout := time.NewTimer(g.closeTimeout)
	defer timeout.Stop()
	select {
	case <-g.ended():
	case <-timeout.C:
		return errors.Join(err, fmt.Errorf("gateway: close: a request has not ended within %v", g.closeTimeout))
	}
	if g.recorder != nil && g.recorder.Err() != nil {
		err = errors.Join(err, fmt.Errorf("record the session: %w", g.recorder.Err()))
	}
	return err
}

// awaitEnd returns a channel that is closed when all requests have ended.
func (g *Gateway) awaitEnd() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.serving.Wait()
		g.outward.close()
		for range maxRequests { // every request has released its slot, and none gets one any more
			g.slots <- struct{}{}
		}
		for range maxTools {
			g.tools <- struct{}{}
		}
		for range maxExecutors {
			g.executors <- struct{}{}
		}
		g.transport.CloseIdleConnections()
	}()
	return ended
}

// admit reports whether token is the valid token of the session.
func (g *Gateway) admit(token string) bool {
	given := sha256.Sum256([]byte(token))
	g.mu.Lock()
	alive := !g.closed && time.Now().Before(g.expires)
	g.mu.Unlock()
	return subtle.ConstantTimeCompare(given[:], g.digest[:]) == 1 && alive
}

// enter waits for a free slot. The caller must call leave.
func enter(ctx context.Context, slots chan struct{}) (leave func(), ok bool) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, true
	case <-ctx.Done():
		return nil, false
	}
}

// baseURL returns the base address of an upstream.
func (u Upstream) baseURL(name string) (*url.URL, error) {
	maker, known := makers()[u.API]
	if !known {
		return nil, fmt.Errorf("%w: upstream %q: there is no API %q; choose anthropic, openai or gemini", ErrConfig, name, u.API)
	}
	raw := u.URL
	if raw == "" {
		raw = maker
	}
	base, err := url.Parse(raw)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("%w: upstream %q: its URL is no plain http or https address; give one such as %s", ErrConfig, name, maker)
	}
	return base, nil
}
