// Command chat serves conversations with an agent over HTTP. Each conversation has its own
// sandbox, which is created with the first prompt and ends with the program.
//
//	POST /chats                          begins a conversation; the answer is its ID
//	POST /chats/{id}                     takes a prompt, the body of the request
//	GET  /chats/{id}                     sends all events, or those after Last-Event-ID
//	POST /chats/{id}/permissions/{req}   takes an answer, such as {"kind": "allow_once"}
//
//	ADDR=127.0.0.1:8080 go run ./examples/chat
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8080")); err != nil {
		log.Fatal(err)
	}
}

// chats are the conversations of this server.
type chats struct {
	config session.Config
	open   sync.Map // *session.AgentSession by ID
}

// serve serves until ctx is done, then ends all sandboxes.
func serve(ctx context.Context, addr string) error {
	c := &chats{config: session.Config{Environment: environment.Config{
		Sandbox:      environment.Sandbox{Type: "local"},
		Agent:        environment.Agent{Name: "script"},
		OnPermission: environment.AnswerLater, PermissionTimeout: 10 * time.Minute,
	}}}
	defer c.close()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /chats", c.begin)
	mux.HandleFunc("POST /chats/{id}", c.with(prompt))
	mux.HandleFunc("GET /chats/{id}", c.with(events))
	mux.HandleFunc("POST /chats/{id}/permissions/{req}", c.with(answer))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (c *chats) begin(w http.ResponseWriter, r *http.Request) {
	s, err := session.Open(context.WithoutCancel(r.Context()), c.config)
	if err != nil {
		fail(w, err)
		return
	}
	c.open.Store(s.ID(), s)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, s.ID())
}

// with returns a handler that finds the conversation of a request for h.
func (c *chats) with(h func(*session.AgentSession, http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s, ok := c.open.Load(r.PathValue("id"))
		if !ok {
			http.NotFound(w, r)
			return
		}
		if err := h(s.(*session.AgentSession), w, r); err != nil {
			fail(w, err)
		}
	}
}

func prompt(s *session.AgentSession, w http.ResponseWriter, r *http.Request) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return err
	}
	_, err = s.Prompt(r.Context(), string(text))
	return err
}

// events sends server-sent events. A browser that reconnects gets the events that it missed.
func events(s *session.AgentSession, w http.ResponseWriter, r *http.Request) error {
	last, _ := strconv.ParseUint(r.Header.Get("Last-Event-ID"), 10, 64)
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	for ev, err := range s.Events(r.Context(), last+1) {
		if err != nil {
			return nil // the reader or the session is gone
		}
		data, err := json.Marshal(ev)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", ev.Seq, ev.Type, data)
		if flush() != nil {
			return nil
		}
	}
	return nil
}

func answer(s *session.AgentSession, w http.ResponseWriter, r *http.Request) error {
	var d environment.PermissionDecision
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&d); err != nil {
		return fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	return s.Respond(r.Context(), r.PathValue("req"), d)
}

// fail answers with the HTTP status of an error.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, fs.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, session.ErrNotPending), errors.Is(err, session.ErrBusy):
		status = http.StatusConflict
	}
	http.Error(w, err.Error(), status)
}

// close ends all conversations and their sandboxes, and returns when they have ended.
func (c *chats) close() {
	var all sync.WaitGroup
	for _, s := range c.open.Range {
		all.Go(func() {
			if err := s.(*session.AgentSession).Close(); err != nil {
				log.Print(err)
			}
		})
	}
	all.Wait()
}
