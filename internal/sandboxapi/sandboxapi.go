// Package sandboxapi is the HTTP interface of sandboxes: its paths and bodies. Packages server and primitives/remote are its two
// ends. What happens in a sandbox travels as the protocol of package guest, over one WebSocket.
package sandboxapi

import (
	"context"
	"encoding/json"
	"io"
	"net/url"

	"github.com/coder/websocket"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Path begins the paths. All of them take the type of the sandbox as ?type=; without it, a new one has that of the
// server's configuration, and others are of any type.
const Path = "/v1/sandboxes"

// Protocol is the subprotocol of the WebSocket.
const Protocol = "agentenv.guest"

// Of returns the path of a sandbox, and below it. An ID that is no part of a path names no sandbox.
func Of(id string, below ...string) string {
	if id == "" || id == "." || id == ".." {
		id = "none"
	}
	path := Path + "/" + url.PathEscape(id)
	for _, part := range below {
		path += "/" + part
	}
	return path
}

// New is the body that creates a sandbox.
type New struct {
	// Sandbox is the key "sandbox" of a configuration. What it leaves out is as in that of the server.
	Sandbox json.RawMessage `json:"sandbox" jsonschema:"as in a configuration file; its paths are of the server's machine"`
	// Install is what its image must contain, if it has one.
	Install *primitives.Install `json:"install,omitempty"`
	// Owner is the program that creates it, in a form of its own.
	Owner string `json:"owner,omitempty"`
}

// Sandbox describes one sandbox.
type Sandbox struct {
	ID           string                  `json:"id"`
	Type         string                  `json:"type"`
	State        primitives.State        `json:"state"`
	Capabilities primitives.Capabilities `json:"capabilities"` // zero unless a client uses it
}

// List has sandboxes, the oldest first.
type List struct {
	Sandboxes []Listed `json:"sandboxes"`
	// Error says that some could not be listed.
	Error *apierror.Error `json:"error,omitempty"`
}

// Listed is a sandbox in a list.
type Listed struct {
	primitives.Info
	// Creator is New.Owner of a sandbox that was created over this server since it started.
	Creator string `json:"creator,omitempty"`
}

// History is what happened to a sandbox, the oldest first.
type History struct {
	Incidents []primitives.Incident `json:"incidents"`
}

// Collect is the body that removes orphans.
type Collect struct {
	DryRun  bool `json:"dry_run,omitempty"`
	NoGrace bool `json:"no_grace,omitempty"`
}

// Collected is what was removed.
type Collected struct {
	Removed []primitives.Garbage `json:"removed"`
	Error   *apierror.Error      `json:"error,omitempty"`
}

// Stream returns a WebSocket as a stream of bytes. Closing it breaks the connection: package guest takes leave by itself.
func Stream(ctx context.Context, conn *websocket.Conn) io.ReadWriteCloser {
	conn.SetReadLimit(-1) // a reader takes a message in parts
	return &stream{ctx: context.WithoutCancel(ctx), conn: conn}
}

// stream has one reader and one writer at a time, as yamux has.
type stream struct {
	ctx  context.Context //nolint:containedctx // io.Reader and io.Writer take none
	conn *websocket.Conn
	rest io.Reader // of a message; nil if there is none
}

func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.rest == nil {
			_, message, err := s.conn.Reader(s.ctx)
			if err != nil {
				return 0, err
			}
			s.rest = message
		}
		n, err := s.rest.Read(p)
		if err == io.EOF {
			s.rest, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (s *stream) Write(p []byte) (int, error) {
	if err := s.conn.Write(s.ctx, websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *stream) Close() error { return s.conn.CloseNow() }
