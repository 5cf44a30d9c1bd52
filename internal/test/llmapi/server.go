package llmapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Config configures a server. The zero value is useful.
type Config struct {
	// Addr is the address to listen on; empty means a free port of the loopback interface.
	Addr string
	// ReleaseAfter releases a held stream after this time. Zero means that only
	// [Server.Release] does.
	ReleaseAfter time.Duration
}

// Server is a running scripted model. Its methods may be called at any time from
// any goroutine.
type Server struct {
	// URL is the base URL for agents, for example of ANTHROPIC_BASE_URL.
	URL string

	cfg     Config
	http    *http.Server
	served  chan error
	held    chan struct{}
	release chan struct{}
	closing chan struct{}
	close   sync.Once

	mu       sync.Mutex
	requests []Request
	refused  []error // the invalid histories
}

// maxBody is far more than agents send in tests, in bytes.
const maxBody = 64 << 20

// Start starts a server. The caller must call Close.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	addr := cfg.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for the scripted model: %w", err)
	}
	s := &Server{
		URL:     "http://" + ln.Addr().String(),
		cfg:     cfg,
		served:  make(chan error, 1),
		held:    make(chan struct{}, 64),
		release: make(chan struct{}),
		closing: make(chan struct{}),
	}
	s.http = &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	go func() { s.served <- s.http.Serve(ln) }()
	return s, nil
}

// Close closes all connections and ends the server. It returns an error if a request had a history
// that the vendor of its API refuses.
func (s *Server) Close() error {
	var err error
	s.close.Do(func() {
		close(s.closing)
		err = s.http.Close()
		if serveErr := <-s.served; !errors.Is(serveErr, http.ErrServerClosed) {
			err = errors.Join(err, serveErr)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		err = errors.Join(err, errors.Join(s.refused...))
	})
	return err
}

// WaitHeld waits until a stream is held. It reports each held stream once.
func (s *Server) WaitHeld(ctx context.Context) error {
	select {
	case <-s.held:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a held stream: %w", context.Cause(ctx))
	}
}

// Release releases one held stream. If there is none, it waits for one.
func (s *Server) Release(ctx context.Context) error {
	select {
	case s.release <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("release a held stream: %w", context.Cause(ctx))
	}
}

// hold waits until the stream is released, and reports whether the stream must continue.
func (s *Server) hold(ctx context.Context) bool {
	select {
	case s.held <- struct{}{}:
	default: // held is full: do not report this stream
	}
	var after <-chan time.Time
	if s.cfg.ReleaseAfter > 0 {
		timer := time.NewTimer(s.cfg.ReleaseAfter)
		defer timer.Stop()
		after = timer.C
	}
	select {
	case <-s.release:
		return true
	case <-after:
		return true
	case <-ctx.Done():
		return false
	case <-s.closing:
		return false
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("HEAD /{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v1/messages", s.anthropicMessages)
	mux.HandleFunc("POST /v1/messages/count_tokens", s.anthropicCountTokens)
	mux.HandleFunc("GET /v1/models", s.anthropicModels)
	mux.HandleFunc("POST /v1/responses", s.responses)
	mux.HandleFunc("POST /v1beta/models/{call}", s.gemini)
	mux.HandleFunc("POST /v1/chat/completions", s.chatCompletions)
	return mux
}

// readBody reads the body of a request. If that fails, it answers with an error.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "cannot read the request: "+err.Error(), http.StatusBadRequest)
		return nil, false
	}
	return body, true
}
