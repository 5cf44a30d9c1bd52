package primitivestest

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// brokenDial changes every connection that is dialed.
func brokenDial(change func(ctx context.Context, c halfConn) (net.Conn, error)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		dial := f.dial
		f.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return change(ctx, c.(halfConn))
		}
	})
}

// faultyConn is a connection with one fault.
type faultyConn struct {
	halfConn
	read       func(p []byte) (int, error)
	closeWrite func() error
	close      func() error
	readBy     func(t time.Time) error
}

func (c *faultyConn) Read(p []byte) (int, error)        { return c.read(p) }
func (c *faultyConn) CloseWrite() error                 { return c.closeWrite() }
func (c *faultyConn) Close() error                      { return c.close() }
func (c *faultyConn) SetReadDeadline(t time.Time) error { return c.readBy(t) }

// gentle is a connection that is never reset.
type gentle struct{ halfConn }

func (gentle) SetLinger(int) error { return nil }

// faulty converts a fault to the change function of brokenDial.
func faulty(fault func(c *faultyConn)) func(ctx context.Context, c halfConn) (net.Conn, error) {
	return func(_ context.Context, c halfConn) (net.Conn, error) {
		f := &faultyConn{halfConn: c, read: c.Read, closeWrite: c.CloseWrite, close: c.Close, readBy: c.SetReadDeadline}
		fault(f)
		return f, nil
	}
}

// faultyListener is a listener with one fault.
type faultyListener struct {
	net.Listener
	accept func() (net.Conn, error)
	close  func() error
}

func (l *faultyListener) Accept() (net.Conn, error) { return l.accept() }
func (l *faultyListener) Close() error              { return l.close() }

// brokenListen changes every listener.
func brokenListen(fault func(l *faultyListener)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		listen := f.listen
		f.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
			l, err := listen(ctx, network, address)
			if err != nil {
				return nil, err
			}
			faulty := &faultyListener{Listener: l, accept: l.Accept, close: l.Close}
			fault(faulty)
			return faulty, nil
		}
	})
}

func forwardMutants() []mutant {
	machine := broken(func(f *faults) {
		f.dial = (&net.Dialer{}).DialContext
		f.listen = (&net.ListenConfig{}).Listen
	})
	return []mutant{
		{"only ports are dialed", "Dial reaches what listens in the sandbox, on a port or a socket", ": dial: unsupported operation", broken(func(f *faults) {
			dial := f.dial
			f.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if network == "unix" {
					return nil, &primitives.Error{Op: "dial", Err: errors.ErrUnsupported}
				}
				return dial(ctx, network, address)
			}
		})},
		{"accepted connections are closed", "Listen takes connections that are made in the sandbox", "use of closed network connection", brokenListen(func(l *faultyListener) {
			accept := l.accept
			l.accept = func() (net.Conn, error) {
				c, err := accept()
				if err == nil {
					err = c.Close()
				}
				return c, err
			}
		})},
		{"CloseWrite does nothing", "each half of a connection ends by itself", inVain + " for a large question, its end, and the answer", brokenDial(faulty(func(c *faultyConn) {
			c.closeWrite = func() error { return nil }
		}))},
		{"CloseWrite closes both halves", "each half of a connection ends by itself", "use of closed network connection", brokenDial(faulty(func(c *faultyConn) {
			c.closeWrite = c.close
		}))},
		{"fifty connections at most", "a hundred connections at once do not mix", "waiting for all of them: dial: limit was exceeded", broken(func(f *faults) {
			dial, n := f.dial, atomic.Int32{}
			f.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if n.Add(1) > 50 {
					return nil, &primitives.Error{Op: "dial", Err: primitives.ErrLimit}
				}
				return dial(ctx, network, address)
			}
		})},
		{"one connection at a time", "a connection that nobody reads holds up no other", inVain + " for an answer beside it", broken(func(f *faults) {
			dial := f.dial
			var before chan struct{} // closed with the connection before
			f.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				turn, closed := before, make(chan struct{})
				before = closed
				return faulty(func(f *faultyConn) {
					read, end := f.read, f.close
					f.read = func(p []byte) (int, error) {
						if turn != nil {
							<-turn
						}
						return read(p)
					}
					f.close = sync.OnceValue(func() error {
						defer close(closed)
						return end()
					})
				})(ctx, c.(halfConn))
			}
		})},
		{"a reset reads as the end", "a reset in the sandbox is not the end of the data", "waiting for the reset: it reads as the end", brokenDial(faulty(func(c *faultyConn) {
			read := c.read
			c.read = func(p []byte) (int, error) {
				n, err := read(p)
				if err != nil {
					err = io.EOF
				}
				return n, err
			}
		}))},
		{"a reset by the host is a close", "a reset by the host is not the end of the data", `what the client saw: got ""`, brokenListen(func(l *faultyListener) {
			accept := l.accept
			l.accept = func() (net.Conn, error) {
				c, err := accept()
				if err != nil {
					return nil, err
				}
				return gentle{c.(halfConn)}, nil
			}
		})},
		{"Close leaves the connection open inside", "a process in the sandbox learns that the host has closed", inVain + ` for 1 lines "over"`, brokenDial(faulty(func(c *faultyConn) {
			c.close = func() error { return nil }
		}))},
		{"deadlines are ignored", "a deadline ends a wait, and the connection goes on", inVain + " for the deadline", brokenDial(faulty(func(c *faultyConn) {
			c.readBy = func(time.Time) error { return nil }
		}))},
		{"a connection ends with the context of Dial", "ctx covers the connecting only", "waiting for an answer, a while later: reading what is not sent", brokenDial(func(ctx context.Context, c halfConn) (net.Conn, error) {
			context.AfterFunc(ctx, func() { _ = c.Close() })
			return c, nil
		})},
		{"Close leaves the listener open", "a listener that is closed frees its address", inVain + ": the address of a closed listener is not free", brokenListen(func(l *faultyListener) {
			l.close = func() error { return nil }
		})},
		{"errors of Dial are only text", "what cannot be reached says why", `connection refused, want "connection refused" in its chain`, broken(func(f *faults) {
			dial := f.dial
			f.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := dial(ctx, network, address)
				if err != nil {
					err = &primitives.Error{Op: "dial", Err: errors.New(strings.Clone(err.Error()))}
				}
				return c, err
			}
		})},
		{"connections outlive the sandbox", "Terminate ends listeners and connections", inVain + " for Accept to return", machine},
		{"connections outlive the handle", "Close of the handle ends listeners and connections", inVain + " for Accept to return", machine},
	}
}
