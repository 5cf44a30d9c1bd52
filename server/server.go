package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/server/coordinator"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Limits of requests. A file that is written has none but that of the sandbox.
const (
	maxBody       = 16 << 20 // bytes; a prompt can be a whole file
	maxHeader     = 64 << 10 // bytes
	minToken      = 16       // bytes
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second // of each part of a body
	idleTimeout   = 2 * time.Minute
	// drainTimeout is how long a server that stops waits for the requests that it has.
	drainTimeout = 10 * time.Second
)

// Config says what to serve. Only Host is required.
type Config struct {
	// Host has the sessions. The caller shuts it down after the server.
	Host *session.Host
	// Token is what an admin sends as a bearer token, of at least 16 bytes. With neither Token nor Authenticate the server
	// answers only requests from this machine to a loopback address, and each user of the machine may do everything that this
	// program may.
	Token string
	// Authenticate returns the caller behind another token than Token, or an error, whose text the client gets. Nil accepts no
	// other token. It is called for each request, from several goroutines.
	Authenticate func(ctx context.Context, token string) (Caller, error)
	// Sandboxes lets runners and admins use sandboxes of their own, of every type that the program links, besides those of
	// sessions. Configure does not see them.
	Sandboxes bool
	// MaxSessions is how many sessions a caller that is no admin may have. Zero means 100.
	MaxSessions int
	// Defaults is what the configuration of a new session has where its client leaves something out, as far as a
	// configuration file can hold it. Settings of its sandbox and agent count only for a session with the same ones.
	Defaults environment.Config
	// Configure changes the configuration of a new session, or refuses it with an error. Nil takes it as it is. The server
	// sets OnPermission and Logger. POST /team/load calls it, too, and creates nothing.
	Configure func(ctx context.Context, cfg *session.Config) error
	// Coordinator hands runs to runners, at /coordinator; nil has no such paths. The caller closes it after the server.
	Coordinator *coordinator.Coordinator
	// Modes returns the permission modes of an agent, the initial one first, for clients of the Agent Client Protocol. Nil knows
	// none; agents take any mode then.
	Modes func(agent string) []string
	// Logger receives diagnostics; nil discards them.
	Logger hclog.Logger
}

// Server is an http.Handler that serves sessions. Its methods may be called from several goroutines at once.
type Server struct {
	cfg    Config
	log    hclog.Logger
	token  [sha256.Size]byte
	mux    *http.ServeMux
	origin http.CrossOriginProtection
	once   once
	boxes  boxes
	peers  peers
	rates  rates
	// forwarding makes the requests to other servers.
	forwarding http.Transport

	heartbeat time.Duration // between comments in a stream without events; tests shorten it
	draining  chan struct{} // closed when streams are to end
	drain     sync.Once
}

// New returns a server.
func New(cfg Config) (*Server, error) {
	if cfg.Host == nil {
		return nil, fmt.Errorf("new server: %w: it needs a Host", fs.ErrInvalid)
	}
	if n := len(cfg.Token); n > 0 && n < minToken {
		return nil, fmt.Errorf("new server: %w: the token has %d bytes; use at least %d random ones", fs.ErrInvalid, n, minToken)
	}
	cfg.MaxSessions = cmp.Or(cfg.MaxSessions, defaultMaxSessions)
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger.Named("server"), token: sha256.Sum256([]byte(cfg.Token)),
		mux: http.NewServeMux(), heartbeat: sessionapi.Heartbeat, draining: make(chan struct{}),
		rates: rates{most: maxRate, burst: maxBurst}, forwarding: http.Transport{IdleConnTimeout: idleTimeout}, // without a proxy, which would see the tokens
	}
	s.boxes.log, s.boxes.connect = s.log, defaultGrace
	routes, err := s.routes()
	if err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	for _, r := range routes {
		guarded, err := s.guard(r)
		if err != nil {
			return nil, fmt.Errorf("new server: %w", err)
		}
		s.mux.Handle(r.method+" "+r.path, guarded)
	}
	return s, nil
}

// Sessions returns the settings of session.HostConfig that a host of a server needs: permission requests wait for clients.
func Sessions(log hclog.Logger) session.Config {
	return session.Config{Environment: environment.Config{OnPermission: environment.AnswerLater, Logger: log}}
}

// Close ends the streams as Drain does, closes the sandboxes of clients, and ends those that are not kept, for up to a minute.
// Serve calls it by itself.
func (s *Server) Close(ctx context.Context) {
	s.Drain()
	s.peers.stop()
	s.boxes.stop(ctx)
	s.forwarding.CloseIdleConnections()
}

// Serve serves connections from l until ctx is done. Then it ends the streams, waits up to 10 seconds for other requests, ends the
// sandboxes of clients that are not kept, which takes up to a minute, and returns nil. It closes l. In a store that programs share
// (store.Shared) it opens the sessions of servers that have died, and passes requests on to the server that has their session. Without a token it refuses to
// listen on an address of a network, with fs.ErrPermission.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.tokenless() && !loopback(l.Addr().String()) {
		err := fmt.Errorf("serve on %s: %w: without a token a server listens on a loopback address only", l.Addr(), fs.ErrPermission)
		return errors.Join(err, l.Close())
	}
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:    s.errorLog(),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	var others sync.WaitGroup
	others.Go(func() { s.takeOver(ctx) })
	defer others.Wait()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	var err error
	select {
	case err = <-served:
		err = errors.Join(err, srv.Close())
		s.Close(ctx)
		return err
	case <-ctx.Done():
		s.Drain()
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		if err = srv.Shutdown(patience); err != nil {
			err = srv.Close()
		}
		cancel()
		s.Close(ctx)
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
	}
	return err
}

// errorLog returns a log for what package http says of connections.
func (s *Server) errorLog() *log.Logger {
	return s.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})
}

// Drain ends the streams of events, and tells their clients to connect again later. Use it with the method RegisterOnShutdown
// of an http.Server of your own; Serve calls it by itself.
func (s *Server) Drain() { s.drain.Do(func() { close(s.draining) }) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(plain http.ResponseWriter, r *http.Request) {
	w := &begun{ResponseWriter: plain}
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		if cause == http.ErrAbortHandler { //nolint:errorlint // a value that panics carry, not an error chain
			panic(cause)
		}
		begun := w.answered
		s.fail(w, r, fmt.Errorf("%w: panic: %v\n%s", apierror.ErrInternal, cause, debug.Stack()))
		if begun {
			panic(http.ErrAbortHandler) // so that the client does not take a part for the whole answer
		}
	}()
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	caller, err := s.admit(r)
	if err != nil {
		header.Set("Connection", "close")
		_ = control.SetReadDeadline(time.Now().Add(time.Second)) // the body is not waited for
		if errors.Is(err, apierror.ErrUnauthorized) {
			header.Set("WWW-Authenticate", "Bearer")
		}
		s.fail(w, r, err)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, caller))
	r.Body = http.MaxBytesReader(w, &patientBody{r.Body, control}, limitOf(r))
	if h, pattern := s.mux.Handler(r); pattern == "" {
		s.notFound(w, r, h)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// begun is a writer that knows whether an answer has begun.
type begun struct {
	http.ResponseWriter
	answered bool
}

func (b *begun) WriteHeader(status int) {
	b.answered = true
	b.ResponseWriter.WriteHeader(status)
}

func (b *begun) Write(p []byte) (int, error) {
	b.answered = true
	return b.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (b *begun) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// limitOf returns how many bytes a body may have.
func limitOf(r *http.Request) int64 {
	if r.Method == http.MethodPut {
		return 1 << 62
	}
	return maxBody
}

// notFound answers a request that no route takes in the form of the other errors. The answer of the mux says which methods
// the path has.
func (s *Server) notFound(w http.ResponseWriter, r *http.Request, mux http.Handler) {
	answer := &recorded{header: make(http.Header)}
	mux.ServeHTTP(answer, r)
	status, said := http.StatusNotFound, apierror.Error{Code: "not_found", Message: fmt.Sprintf("%s: there is no such path; %s/openapi.json lists them", r.URL.Path, sessionapi.Prefix)}
	if allow := answer.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		status, said = http.StatusMethodNotAllowed, apierror.Error{Code: "unsupported", Message: fmt.Sprintf("%s %s: only %s", r.Method, r.URL.Path, allow)}
	}
	if s.coordinates(r.URL.Path) {
		s.answer(w, status, map[string]any{"detail": said.Message})
		return
	}
	s.answerError(w, status, said)
}

// tokenless reports whether the server takes requests without a token.
func (s *Server) tokenless() bool { return s.cfg.Token == "" && s.cfg.Authenticate == nil }

// admit refuses requests from pages of another origin, and those without a token. If none is needed, it refuses requests from
// other machines, and from pages whose name points to this machine (DNS rebinding).
func (s *Server) admit(r *http.Request) (Caller, error) {
	if err := s.origin.Check(r); err != nil {
		return Caller{}, fmt.Errorf("%w: a page of another origin may not use this server: %w", fs.ErrPermission, err)
	}
	if !s.tokenless() {
		return s.authenticate(r)
	}
	if !loopback(r.Host) || !loopback(r.RemoteAddr) {
		return Caller{}, fmt.Errorf("%w: without a token the server answers to a loopback address only, not to %q from %s", fs.ErrPermission, r.Host, r.RemoteAddr)
	}
	return Caller{Role: RoleAdmin}, nil
}

// loopback reports whether a Host header names this machine.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	addr, err := netip.ParseAddr(name)
	return strings.EqualFold(name, "localhost") || err == nil && addr.IsLoopback()
}

// fail answers a request with an error, unless the answer has begun.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if b, ok := w.(*begun); ok && b.answered {
		s.describe(r, err)
		return
	}
	status, said := s.describe(r, err)
	s.answerError(w, status, said)
}

// describe returns how a client sees an error, and logs the error. The client gets only a number of an error of the server.
func (s *Server) describe(r *http.Request, err error) (int, apierror.Error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge, apierror.Error{Code: "limit", Message: fmt.Sprintf("the body is larger than %d MiB", tooLarge.Limit>>20)}
	}
	code, known := sessionapi.Codes().Of(err)
	if known && !errors.Is(err, apierror.ErrInternal) {
		s.log.Debug("a request failed", "method", r.Method, "path", r.URL.Path, "code", code.Name, "error", err)
		if code.Err == store.ErrUnavailable || code.Err == sessionapi.ErrMoving { //nolint:errorlint // an entry of the table
			return code.Status, apierror.Error{Code: code.Name, Message: code.Err.Error()} // the cause names machines and users
		}
		return code.Status, apierror.Describe(code, err)
	}
	number := rand.Text()[:8]
	s.log.Error("a request failed", "method", r.Method, "path", r.URL.Path, "number", number, "error", err)
	return http.StatusInternalServerError, apierror.Error{Code: "internal", Message: fmt.Sprintf("%s %s failed; the server's log says why, at %s", r.Method, r.URL.Path, number)}
}

func (s *Server) answerError(w http.ResponseWriter, status int, e apierror.Error) {
	e.Message = cmp.Or(e.Message, e.Code)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	s.answer(w, status, apierror.Body{Error: e})
}
