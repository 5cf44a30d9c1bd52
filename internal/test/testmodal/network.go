package testmodal

import (
	"net"
	"sync"
)

// network is a server's listener. A test can cut its connections.
type network struct {
	net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	down  bool
}

// cutConn is a connection that removes itself from its network when it is closed.
type cutConn struct {
	net.Conn
	network *network
}

func newNetwork(l net.Listener) *network {
	return &network{Listener: l, conns: map[net.Conn]struct{}{}}
}

// Accept waits for a connection. While the network is down, it closes new connections at once.
func (n *network) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		_ = conn.Close()
	} else {
		n.conns[conn] = struct{}{}
	}
	return &cutConn{conn, n}, nil
}

// Close removes the connection from the network and closes it.
func (c *cutConn) Close() error {
	c.network.mu.Lock()
	delete(c.network.conns, c.Conn)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

// CutConnections closes all connections, even in the middle of a call. Clients can reconnect at
// once. Calls that were received continue.
func (s *Server) CutConnections() { s.network.cut() }

// SetDown closes all connections and, until it is called with false, each new one.
func (s *Server) SetDown(down bool) {
	s.network.mu.Lock()
	s.network.down = down
	s.network.mu.Unlock()
	if down {
		s.network.cut()
	}
}

func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		_ = conn.Close()
	}
	clear(n.conns)
}
