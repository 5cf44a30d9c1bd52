package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/agentenv-dev/agentenv/internal/acpserver"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/session"
)

// acpPath is where clients of the Agent Client Protocol connect, over a WebSocket or with requests.
const acpPath = "/acp"

// acpQuery are the keys of the address.
var acpQuery = []string{"agent"}

// acpRoutes adds the operations of the Agent Client Protocol. They answer as its transports demand, and not as the others.
func acpRoutes(t *table, s *Server) {
	for _, r := range []route{
		{method: "GET", summary: "Connect over a WebSocket, or receive messages", media: "text/event-stream", handler: s.acpGet},
		{method: "POST", summary: "Connect with initialize, or send a message", handler: s.acpPost},
		{method: "DELETE", summary: "End a connection of messages", handler: s.acpDelete},
	} {
		r.path, r.query = acpPath, acpQuery
		r.summary = "Agent Client Protocol: " + r.summary
		t.routes = append(t.routes, r)
	}
}

func (s *Server) acpGet(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		s.acpReceive(w, r)
		return
	}
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
	defer done()
	ctx, cancel := s.untilDrain(context.WithoutCancel(r.Context()))
	defer cancel()
	w.Header().Set(headerConnection, newConnectionID())
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		s.log.Debug("no WebSocket", "error", err)
		return // Accept has answered
	}
	conn.SetReadLimit(maxBody)
	s.log.Debug("a client of the agent client protocol has gone", "error", serve(ctx, s.frames(ctx, conn)))
	status := websocket.StatusNormalClosure
	if ctx.Err() != nil {
		status = websocket.StatusGoingAway
	}
	_ = conn.Close(status, "") // the client may have gone
}

// frames is the stream of a WebSocket, with a message in each frame. Closures, because a stream has no context of its own.
type frames struct {
	read  func() ([]byte, error)
	write func([]byte) error
}

func (f *frames) Read() ([]byte, error)      { return f.read() }
func (f *frames) Write(message []byte) error { return f.write(message) }

// frames returns the stream of a connection. A client that has gone without a word is found by pings.
func (s *Server) frames(ctx context.Context, conn *websocket.Conn) acpserver.Stream {
	go func() { // it ends with ctx
		beat := time.NewTicker(s.heartbeat)
		defer beat.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-beat.C:
			}
			bounded, cancel := context.WithTimeout(ctx, writeTimeout)
			err := conn.Ping(bounded)
			cancel()
			if err != nil {
				_ = conn.CloseNow() // then Read fails
				return
			}
		}
	}()
	whole := context.WithoutCancel(ctx) // a context that ends cuts the connection, without a word
	return &frames{
		read: func() ([]byte, error) {
			_, message, err := conn.Read(whole)
			if err != nil {
				return nil, io.EOF // sessions go on without the client, however it has gone
			}
			return message, nil
		},
		write: func(message []byte) error {
			bounded, cancel := context.WithTimeout(whole, writeTimeout)
			defer cancel()
			return conn.Write(bounded, websocket.MessageText, bytes.TrimSuffix(message, []byte("\n")))
		},
	}
}

// acpConnection returns what serves a connection of the caller of a request.
func (s *Server) acpConnection(r *http.Request) (func(context.Context, acpserver.Stream) error, error) {
	q := newQuery(r, acpQuery)
	agent := q.text("agent")
	if q.err != nil {
		return nil, q.err
	}
	caller := callerOf(r.Context())
	cfg := acpserver.Config{
		Name: "agentenv", Title: "agentenv", Version: strings.Trim(sessionapi.Prefix, "/v"),
		Host: s.cfg.Host, Logger: s.log.Named("acp"), Modes: s.cfg.Modes, User: caller.String(),
		Admit:        func() error { return s.limit(caller) },
		AdmitServers: func(n int) error { return admitServers(caller, n) },
		Describe: func(err error) apierror.Error {
			_, said := s.describe(r, err)
			return said
		},
		Configure: func(ctx context.Context, asked acpserver.Request) (session.Config, error) {
			config, err := acpConfig(agent, asked.Extra)
			if err != nil {
				return session.Config{}, err
			}
			return s.configure(ctx, sessionapi.NewSession{Config: config}, asked.Servers...)
		},
	}
	if caller.Role != RoleAdmin {
		cfg.Metadata = ownedBy(caller, nil)
	}
	return func(ctx context.Context, stream acpserver.Stream) error {
		return acpserver.Serve(context.WithValue(ctx, callerKey{}, caller), cfg, stream)
	}, nil
}

// acpConfig returns the configuration that a client asks for: that of the key config, and the agent of its address.
func acpConfig(agent string, extra json.RawMessage) (json.RawMessage, error) {
	var in struct {
		Config map[string]json.RawMessage `json:"config"`
	}
	if len(extra) > 0 {
		dec := json.NewDecoder(bytes.NewReader(extra))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&in); err != nil {
			return nil, fmt.Errorf("%w: _meta.agentenv: %w", fs.ErrInvalid, err)
		}
	}
	config := maps.Clone(in.Config)
	if config == nil {
		config = make(map[string]json.RawMessage)
	}
	if config["agent"] == nil && agent != "" {
		name, err := json.Marshal(agent)
		if err != nil {
			return nil, err
		}
		config["agent"] = name
	}
	return json.Marshal(config)
}
