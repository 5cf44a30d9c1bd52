package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// maxQueued is how many messages wait for an executor that does not read them.
const maxQueued = 64

// ServeHTTP is the endpoint for executors that have no socket, such as those in a sandbox. A POST
// carries one message: a request, whose answer is the body of the response, a notification, or the
// answer to a request of the host. A GET streams the host's requests, a JSON object a line. The session
// token is in the header "Authorization: Bearer TOKEN". Without it nothing is read.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch r.Method {
	case http.MethodGet:
		s.stream(w, r, bearer)
	case http.MethodPost:
		if err := s.Tokens.check(bearer); err != nil {
			w.Header().Set("Connection", "close") // else the answer waits for the body
			s.refuse(w, "message", err)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMessage))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			s.answer(w, http.StatusRequestEntityTooLarge, reply(r.Context(), nil, nil, Errorf(CodeLimit, "send at most %d bytes a message", MaxMessage)))
		case err != nil:
			s.answer(w, http.StatusBadRequest, reply(r.Context(), nil, nil, Errorf(CodeParse, "the message cannot be read: %v", err)))
		default:
			s.post(w, r, bearer, body)
		}
	default:
		w.Header().Set("Allow", "GET, POST")
		http.Error(w, "send a message with POST, or read those of the host with GET", http.StatusMethodNotAllowed)
	}
}

func (s *Service) post(w http.ResponseWriter, r *http.Request, bearer string, body []byte) {
	m, failed := parse(body)
	switch {
	case failed != nil:
		s.answer(w, http.StatusBadRequest, reply(r.Context(), m.ID, nil, failed))
	case m.Method == "":
		g, err := s.Tokens.use(bearer, "")
		if err != nil {
			s.refuse(w, "answer", err)
			return
		}
		s.Remote(g.Session).answered(m)
		w.WriteHeader(http.StatusAccepted)
	case len(m.ID) == 0:
		if _, err := s.handle(r.Context(), "", bearer, m.Method, m.Params); err != nil {
			s.answer(w, status(err), reply(r.Context(), nil, nil, err))
			return
		}
		w.WriteHeader(http.StatusAccepted)
	default:
		result, err := s.handle(r.Context(), "", bearer, m.Method, m.Params)
		if r.Context().Err() != nil {
			return // the executor has withdrawn the request
		}
		s.answer(w, status(err), reply(r.Context(), m.ID, result, err))
	}
}

// status returns the HTTP status of an error: all but a wrong token are the business of JSON-RPC.
func status(err error) int {
	if failed, ok := errors.AsType[*Error](err); ok && failed.Code == CodeToken {
		return http.StatusUnauthorized
	}
	return http.StatusOK
}

func (s *Service) refuse(w http.ResponseWriter, what string, err error) {
	s.audit(Record{Method: what, Outcome: Refused, Reason: err.Error()})
	s.answer(w, http.StatusUnauthorized, message{JSONRPC: "2.0", ID: json.RawMessage("null"), Error: Errorf(CodeToken, "%v", err)})
}

func (s *Service) answer(w http.ResponseWriter, status int, m message) {
	data, err := json.Marshal(m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // an error means that the executor has gone
}

// stream sends the host's messages to an executor, until it or its session ends.
func (s *Service) stream(w http.ResponseWriter, r *http.Request, bearer string) {
	g, err := s.Tokens.use(bearer, "")
	if err != nil {
		s.refuse(w, "stream", err)
		return
	}
	to := s.Remote(g.Session)
	if !to.take() {
		http.Error(w, "another request reads the messages of this session; end it first", http.StatusConflict)
		return
	}
	defer to.release()
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	if err := out.Flush(); err != nil { // the executor knows now that it is connected
		return
	}
	lines := json.NewEncoder(w)
	for {
		select {
		case m := <-to.queue:
			if lines.Encode(m) != nil || out.Flush() != nil {
				return
			}
		case <-to.done:
			return
		case <-g.ctx.Done():
			return
		case <-r.Context().Done():
			return
		}
	}
}

// Remote is the executor of a session that uses the HTTP endpoint.
type Remote struct {
	pending
	queue chan message
	done  chan struct{}
	once  sync.Once

	mu    sync.Mutex
	taken bool
}

// Remote returns the executor of a session. It need not be connected yet: requests wait for it. It ends
// with [Service.End].
func (s *Service) Remote(session string) *Remote {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.remotes[session]
	if r == nil {
		r = &Remote{queue: make(chan message, maxQueued), done: make(chan struct{})}
		s.remotes[session] = r
	}
	return r
}

// Call sends a request to the executor and waits for the answer, as [Conn.Call] does.
func (r *Remote) Call(ctx context.Context, method string, params, result any) error {
	return r.call(ctx, r.write, r.done, method, params, result)
}

func (r *Remote) write(m message) error {
	select {
	case r.queue <- m:
		return nil
	default:
		return fmt.Errorf("%d messages wait for the executor: %w", maxQueued, Errorf(CodeLimit, "it does not read"))
	}
}

func (r *Remote) end() {
	r.once.Do(func() {
		r.abandon()
		close(r.done)
	})
}

func (r *Remote) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := !r.taken
	r.taken = true
	return free
}

func (r *Remote) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = false
}
