package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// service is a coordinator that can be away. Each time that it comes back it has a port of its own, to which the connections to
// address go: the old one cannot be listened on again while a process that is being started has its socket still.
type service struct {
	t      *testing.T
	c      *coordinator.Coordinator
	dir    string
	agents []coordapi.Agent
	at     atomic.Pointer[string]
	server *http.Server
	client *http.Client

	mu sync.Mutex
	// lose cuts the connection of a request after it was handled, so that its answer is lost.
	lose func(*http.Request) bool
	// before is called before a request is handled, and returns whether it has answered it.
	before func(http.ResponseWriter, *http.Request) bool
	seen   []string
	// caller returns the caller of a request; nil means an admin.
	caller func(*http.Request) coordinator.Caller
}

// address is that of each service, and nowhere one at which nothing listens.
const address, nowhere = "http://coordinator.test", "127.0.0.1:1"

func serve(t *testing.T, agents ...coordapi.Agent) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), agents: agents}
	alone := s.transport()
	alone.DisableKeepAlives = true
	s.client = &http.Client{Transport: alone}
	s.up()
	t.Cleanup(s.down)
	return s
}

// transport returns connections to the service.
func (s *service) transport() *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *s.at.Load())
	}}
}

// listen listens at a port to which the connections go from now on.
func (s *service) listen() net.Listener {
	s.t.Helper()
	l, err := new(net.ListenConfig).Listen(s.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.connect(l.Addr().String())
	return l
}

func (s *service) connect(to string) { s.at.Store(&to) }

// up opens the coordinator, and down closes it, as a server that is stopped.
func (s *service) up() {
	s.t.Helper()
	c, err := coordinator.Open(context.WithoutCancel(s.t.Context()), coordinator.Config{Dir: s.dir, Agents: s.agents})
	if err != nil {
		s.t.Fatal(err)
	}
	l := s.listen()
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	mux := http.NewServeMux()
	for _, r := range c.Routes() {
		mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, req *http.Request) {
			if s.before != nil && s.before(w, req) {
				return
			}
			caller := coordinator.Caller{Admin: true}
			if s.caller != nil {
				caller = s.caller(req)
			}
			c.Serve(r, w, req, caller)
			s.mu.Lock()
			lost := s.lose != nil && s.lose(req)
			s.seen = append(s.seen, req.Method+" "+req.URL.Path)
			s.mu.Unlock()
			if lost {
				panic(http.ErrAbortHandler)
			}
		})
	}
	s.c = c
	s.server = &http.Server{Handler: mux, BaseContext: func(net.Listener) context.Context { return ctx }, ReadHeaderTimeout: 1 << 40}
	s.server.RegisterOnShutdown(cancel)
	go func() {
		if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.t.Error(err)
		}
	}()
}

func (s *service) down() {
	if s.server == nil {
		return
	}
	s.connect(nowhere)
	if err := errors.Join(s.server.Shutdown(context.WithoutCancel(s.t.Context())), s.c.Close()); err != nil {
		s.t.Error(err)
	}
	s.server = nil
}

// refuse answers as the proxy of a coordinator that is away, until a runner has polled so many times.
func (s *service) refuse(polls int) {
	s.t.Helper()
	l := s.listen()
	enough := make(chan struct{})
	proxy := &http.Server{ReadHeaderTimeout: 1 << 40, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.URL.Path == "/runner/runs" {
			if polls--; polls == 0 {
				close(enough)
			}
		}
	})}
	served := make(chan error, 1)
	go func() { served <- proxy.Serve(l) }()
	<-enough
	s.connect(nowhere)
	if err := proxy.Close(); err != nil {
		s.t.Error(err)
	}
	<-served
}

// ask sends a request, and decodes the answer.
func (s *service) ask(method, path, body string, to any) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, address+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	data, err := io.ReadAll(w.Body)
	if err != nil || w.StatusCode/100 != 2 {
		s.t.Fatalf("%s %s: %s %s, %v", method, path, w.Status, data, err)
	}
	if err := json.Unmarshal(data, to); err != nil {
		s.t.Fatalf("%s %s: %q: %v", method, path, data, err)
	}
}

func (s *service) start(prompt string) (r coordapi.Run) {
	s.t.Helper()
	s.ask("POST", "/runs", `{"type":"start_session","prompt":"`+prompt+`"}`, &r)
	return r
}

// await waits until a run has a status.
func (s *service) await(run coordapi.Run, status coordapi.RunStatus) (r coordapi.Run) {
	s.t.Helper()
	w, err := s.client.Get(address + "/sse/sessions?session_id=" + run.SessionID)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	for buf := make([]byte, 64<<10); ; {
		if s.ask("GET", "/runs/"+run.ID, "", &r); r.Status == status {
			return r
		}
		if r.Status.Ended() {
			s.t.Fatalf("the run is %+v, want %s", r, status)
		}
		if _, err := w.Body.Read(buf); err != nil { // something has changed
			s.t.Fatal(err)
		}
	}
}
