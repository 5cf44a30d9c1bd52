package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/internal/apierror"
)

// The headers of the protocol's HTTP transport. A client sends each message with POST, and receives messages as events of GET:
// those of a session on a stream of the session, others on that of the connection.
const (
	headerConnection = "Acp-Connection-Id"
	headerSession    = "Acp-Session-Id"
)

// envelope is what the transport looks at in a message.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		SessionID string `json:"sessionId"`
	} `json:"params"`
	Result struct {
		SessionID string `json:"sessionId"`
	} `json:"result"`
}

// opened reads a message. One that is no object, or whose session is no string, is invalid.
func opened(message []byte) (e envelope, err error) {
	if err = json.Unmarshal(message, &e); err != nil {
		err = fmt.Errorf("%w: the message: %w", fs.ErrInvalid, err)
	}
	return e, err
}

// maxID is how many bytes the id of a request may have.
const maxID = 256

// canonical returns an id in one form: messages of both ends may write it with other escapes.
func canonical(id json.RawMessage) string {
	var value any
	dec := json.NewDecoder(bytes.NewReader(id))
	dec.UseNumber()
	if dec.Decode(&value) != nil {
		return string(id)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return string(id)
	}
	return string(text)
}

// routeLocked returns the session whose stream has a message of the agent; empty for that of the connection.
func (p *peer) routeLocked(message []byte) string {
	e, err := opened(message)
	id := canonical(e.ID)
	switch {
	case err != nil: // an answer of another form
		return p.answerLocked(id)
	case e.Method == "":
		return p.answerLocked(id)
	case id != "":
		p.asked[id] = e.Params.SessionID
	}
	return e.Params.SessionID
}

func (p *peer) answerLocked(id string) string {
	session := p.routes[id]
	delete(p.routes, id)
	return session
}

// ofSession reports whether requests of a method name their session in a header.
func ofSession(method string) bool {
	switch method {
	case acp.AgentMethodSessionNew, acp.AgentMethodSessionList:
		return false
	}
	return strings.HasPrefix(method, "session/")
}

// accept notes where the answer to a message of the client goes, or returns why the message is invalid.
func (p *peer) accept(e envelope, session string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	named := e.Params.SessionID
	if e.Method == "" { // the answer to a request of the agent
		named = p.asked[canonical(e.ID)]
	}
	switch {
	case session == "" && (named != "" || ofSession(e.Method)):
		return fmt.Errorf("%w: the header %s is missing", fs.ErrInvalid, headerSession)
	case session != named && named != "":
		return fmt.Errorf("%w: the header %s is not the session of the message", fs.ErrInvalid, headerSession)
	case e.Method == "":
		delete(p.asked, canonical(e.ID))
	case len(e.ID) > maxID:
		return fmt.Errorf("%w: the id has %d bytes; use at most %d", fs.ErrInvalid, len(e.ID), maxID)
	case len(e.ID) > 0 && session != "" && e.Method != acp.AgentMethodSessionLoad: // whose answer tells that the session has a stream
		p.routes[canonical(e.ID)] = session
	}
	return nil
}

// acpPost takes a message of a client.
func (s *Server) acpPost(w http.ResponseWriter, r *http.Request) {
	message, err := readBody(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	e, err := opened(message)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	id := r.Header.Get(headerConnection)
	if e.Method == acp.AgentMethodInitialize && len(e.ID) > 0 {
		if id != "" {
			s.fail(w, r, fmt.Errorf("%w: the connection is initialized already", fs.ErrInvalid))
			return
		}
		s.acpConnect(w, r, message)
		return
	}
	p, err := s.peer(r)
	if err == nil {
		err = p.accept(e, r.Header.Get(headerSession))
	}
	if err == nil {
		err = p.send(r.Context(), message)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// peer returns the connection that a request names.
func (s *Server) peer(r *http.Request) (*peer, error) {
	id := r.Header.Get(headerConnection)
	if id == "" {
		return nil, fmt.Errorf("%w: the header %s is missing; send initialize first", fs.ErrInvalid, headerConnection)
	}
	if p := s.peers.find(callerOf(r.Context()), id); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: there is no connection %q; initialize another one, and load the session", fs.ErrNotExist, id)
}

// acpConnect begins a connection, and answers with that of the agent to initialize.
func (s *Server) acpConnect(w http.ResponseWriter, r *http.Request, message []byte) {
	serve, err := s.acpConnection(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	done, err := s.peers.begin(callerOf(r.Context()))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, cancel := s.untilDrain(context.WithoutCancel(r.Context()))
	p := newPeer(callerOf(r.Context()))
	s.peers.add(p)
	go func() {
		defer done()
		defer cancel()
		stop := context.AfterFunc(ctx, p.end)
		err := serve(ctx, p)
		stop()
		p.end()
		p.idle.Stop()
		s.peers.remove(p)
		s.log.Debug("a client of the agent client protocol has gone", "error", err)
	}()
	answer, err := p.connect(r.Context(), message)
	if err != nil {
		p.end()
		s.fail(w, r, err)
		return
	}
	w.Header().Set(headerConnection, p.id)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // the client may have gone; the connection ends then
}

// connect sends the first message, and returns the answer, which is not received with the others.
func (p *peer) connect(ctx context.Context, message []byte) ([]byte, error) {
	box, done, err := p.receive("")
	if err != nil {
		return nil, err
	}
	defer done()
	if err := p.send(ctx, message); err != nil {
		return nil, err
	}
	for {
		answer, changed := p.first(box)
		if answer != nil {
			p.received(box)
			return bytes.Clone(answer), nil
		}
		select {
		case <-changed:
		case <-p.ended:
			return nil, fmt.Errorf("%w: %w", apierror.ErrInternal, errNoPeer)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// acpReceive streams the messages of a session, or of the connection.
func (s *Server) acpReceive(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		s.fail(w, r, fmt.Errorf("%w: connect with a WebSocket, or accept text/event-stream", fs.ErrInvalid))
		return
	}
	p, err := s.peer(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	box, done, err := p.receive(r.Header.Get(headerSession))
	if err == nil && box == nil {
		err = fmt.Errorf("%w: another request receives these messages", fs.ErrExist)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer done()
	out := newSSE(w)
	beat := time.NewTicker(s.heartbeat)
	defer beat.Stop()
	for out.flush() == nil {
		message, changed := p.first(box)
		if message != nil {
			fmt.Fprintf(&out.buf, "data: %s\n\n", bytes.TrimSuffix(message, []byte("\n")))
			if out.flush() != nil {
				return // the next stream has the message
			}
			p.received(box)
			continue
		}
		select {
		case <-changed:
		case <-beat.C:
			out.buf.WriteString(":\n\n")
		case <-p.ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// acpDelete ends a connection.
func (s *Server) acpDelete(w http.ResponseWriter, r *http.Request) {
	p, err := s.peer(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	p.end()
	w.WriteHeader(http.StatusAccepted)
}
