package primitivestest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// forwardRule returns a rule that expects errors.ErrUnsupported if the sandbox forwards no
// connections.
func forwardRule(name string, check func(t testingT, s *sandbox)) rule {
	return rule{name: name, check: func(t testingT, s *sandbox) {
		if s.Capabilities().Forward {
			check(t, s)
			return
		}
		_, err := primitives.Dial(t.Context(), s.EnvironmentPrimitive, "tcp", "127.0.0.1:1")
		expectError(t, "Dial", err, errors.ErrUnsupported)
		_, err = primitives.Listen(t.Context(), s.EnvironmentPrimitive, "tcp", "127.0.0.1:0")
		expectError(t, "Listen", err, errors.ErrUnsupported)
	}}
}

func ownForwardRule(name string, check func(t testingT, s *sandbox)) rule {
	r := forwardRule(name, check)
	r.own = true
	return r
}

// halfConn is the interface that every connection must have.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// server starts a server of the probe and returns its process and its address.
func (s *sandbox) server(t testingT, word, network, address string) (primitives.Process, string) {
	t.Helper()
	p := s.start(t, t.Context(), s.command(word, network, address))
	var line string
	s.within(t, "the server's address", func() error {
		var err error
		line, err = bufio.NewReaderSize(io.LimitReader(p.Stdout(), 1<<10), 16).ReadString('\n')
		return err
	})
	return p, strings.TrimSpace(line)
}

// dial connects. It closes the connection at the end of the case.
func (s *sandbox) dial(t testingT, network, address string) halfConn {
	t.Helper()
	c, err := primitives.Dial(t.Context(), s.EnvironmentPrimitive, network, address)
	if err != nil {
		t.Fatalf("Dial %s: %v", address, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	half, ok := c.(halfConn)
	if !ok {
		t.Fatalf("a connection of type %T has no CloseWrite", c)
	}
	return half
}

// listen listens until the end of the case.
func (s *sandbox) listen(t testingT, network, address string) net.Listener {
	t.Helper()
	l, err := primitives.Listen(t.Context(), s.EnvironmentPrimitive, network, address)
	if err != nil {
		t.Fatalf("Listen %s: %v", address, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// accept accepts the next connection. It closes the connection at the end of the case.
func (s *sandbox) accept(t testingT, l net.Listener) net.Conn {
	t.Helper()
	var c net.Conn
	s.within(t, "Accept", func() error {
		var err error
		c, err = l.Accept()
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// expectIs checks an error of a connection, which has the form of the net package's errors.
func expectIs(t testingT, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error is %v, want %q in its chain", what, err, want)
	}
}

// exchange sends what and expects to receive it back.
func exchange(c io.ReadWriter, what string) error {
	if _, err := io.WriteString(c, what); err != nil {
		return err
	}
	got := make([]byte, len(what))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != what {
		return fmt.Errorf("%q came back as %q", brief(what), brief(string(got)))
	}
	return nil
}

// forwardRules returns the rules about connections into and out of a sandbox.
func forwardRules() []rule {
	rules := []rule{
		forwardRule("Dial reaches what listens in the sandbox, on a port or a socket", func(t testingT, s *sandbox) {
			for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": s.in("s")} {
				if network == "unix" {
					s.server(t, "serve", network, "s") // the probe runs in the folder
				} else {
					_, address = s.server(t, "serve", network, address)
				}
				c := s.dial(t, network, address)
				s.within(t, "an answer over "+network, func() error { return exchange(c, "hello") })
			}
		}),
		forwardRule("Listen takes connections that are made in the sandbox", func(t testingT, s *sandbox) {
			for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": s.in("l")} {
				l := s.listen(t, network, address)
				to := l.Addr().String()
				if network == "unix" {
					to = "l"
				}
				cmd := s.command("connect", network, to)
				cmd.Stdin = true
				p := s.start(t, t.Context(), cmd)
				c := s.accept(t, l)
				s.within(t, "question and answer", func() error {
					_, werr := io.WriteString(p.Stdin(), "question")
					q := make([]byte, 8)
					_, rerr := io.ReadFull(c, q)
					_, aerr := io.WriteString(c, "answer to "+string(q))
					return errors.Join(werr, rerr, aerr, c.Close(), p.Stdin().Close())
				})
				expect(t, "what the client got over "+network, s.readAll(t, p.Stdout()), "answer to question")
			}
		}),
		forwardRule("each half of a connection ends by itself", func(t testingT, s *sandbox) {
			_, address := s.server(t, "tally", "tcp", "127.0.0.1:0")
			c := s.dial(t, "tcp", address)
			const size = 3 << 20
			s.within(t, "a large question, its end, and the answer", func() error {
				_, err := c.Write(make([]byte, size))
				if err = errors.Join(err, c.CloseWrite()); err != nil {
					return err
				}
				answer, err := io.ReadAll(c)
				if err == nil && string(answer) != strconv.Itoa(size) {
					err = fmt.Errorf("it counted %q of %d bytes", answer, size)
				}
				return err
			})
		}),
		forwardRule("a hundred connections at once do not mix", func(t testingT, s *sandbox) {
			_, address := s.server(t, "serve", "tcp", "127.0.0.1:0")
			var all sync.WaitGroup
			errs := make([]error, 100)
			s.within(t, "all of them", func() error {
				for i := range errs {
					all.Go(func() {
						c, err := primitives.Dial(t.Context(), s.EnvironmentPrimitive, "tcp", address)
						if err != nil {
							errs[i] = err
							return
						}
						for n := range 10 {
							errs[i] = errors.Join(errs[i], exchange(c, strings.Repeat(fmt.Sprintf("%d of %d ", n, i), 200)))
						}
						errs[i] = errors.Join(errs[i], c.Close())
					})
				}
				all.Wait()
				return errors.Join(errs...)
			})
		}),
	}
	return concat(rules, forwardEnds(), forwardWaits(), forwardEdges())
}

// forwardEnds returns the rules about how connections wait and end.
func forwardEnds() []rule {
	return []rule{
		forwardRule("a connection that nobody reads holds up no other", func(t testingT, s *sandbox) {
			_, flood := s.server(t, "gush", "tcp", "127.0.0.1:0")
			_, address := s.server(t, "serve", "tcp", "127.0.0.1:0")
			unread := s.dial(t, "tcp", flood)
			s.within(t, "the first byte", func() error {
				_, err := io.ReadFull(unread, make([]byte, 1))
				return err
			})
			c := s.dial(t, "tcp", address)
			s.within(t, "an answer beside it", func() error { return exchange(c, strings.Repeat("x", 4<<20)) })
			expect(t, "output beside it", s.probed(t, "out", "here"), "here")
		}),
		forwardRule("a reset in the sandbox is not the end of the data", func(t testingT, s *sandbox) {
			_, address := s.server(t, "reset", "tcp", "127.0.0.1:0")
			c := s.dial(t, "tcp", address)
			s.within(t, "the reset", func() error {
				if _, err := c.Write([]byte("x")); err != nil {
					return err
				}
				if _, err := io.ReadAll(c); err == nil {
					return errors.New("it reads as the end")
				}
				return nil
			})
		}),
		forwardRule("a reset by the host is not the end of the data", func(t testingT, s *sandbox) {
			l := s.listen(t, "tcp", "127.0.0.1:0")
			cmd := s.command("connect", "tcp", l.Addr().String())
			cmd.Stdin = true
			p := s.start(t, t.Context(), cmd)
			c := s.accept(t, l)
			tcp, ok := c.(interface{ SetLinger(sec int) error })
			if !ok {
				t.Fatalf("a connection of type %T has no SetLinger", c)
			}
			s.within(t, "a byte, so that the client has connected", func() error {
				_, werr := io.WriteString(p.Stdin(), "x")
				_, rerr := io.ReadFull(c, make([]byte, 1))
				return errors.Join(werr, rerr)
			})
			expect(t, "error of SetLinger", tcp.SetLinger(0), nil)
			expect(t, "error of Close", c.Close(), nil)
			expect(t, "what the client saw", s.readAll(t, p.Stdout()), "reset")
		}),
		forwardRule("a process in the sandbox learns that the host has closed", func(t testingT, s *sandbox) {
			p, address := s.server(t, "gush", "tcp", "127.0.0.1:0")
			c := s.dial(t, "tcp", address)
			s.within(t, "the first byte", func() error {
				_, err := io.ReadFull(c, make([]byte, 1))
				return err
			})
			expect(t, "error of Close", c.Close(), nil)
			s.expectLines(t, p.Stdout(), "over", 1)
			_, err := c.Read(make([]byte, 1))
			expectIs(t, "Read after Close", err, net.ErrClosed)
			_, err = c.Write(make([]byte, 1))
			expectIs(t, "Write after Close", err, net.ErrClosed)
		}),
	}
}

// forwardWaits returns the rules about deadlines and contexts.
func forwardWaits() []rule {
	return []rule{
		forwardRule("a deadline ends a wait, and the connection goes on", func(t testingT, s *sandbox) {
			_, address := s.server(t, "serve", "tcp", "127.0.0.1:0")
			c := s.dial(t, "tcp", address)
			if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
				t.Fatalf("SetReadDeadline: %v", err)
			}
			var err error
			s.within(t, "the deadline", func() error {
				_, err = c.Read(make([]byte, 1))
				return nil
			})
			expectIs(t, "Read", err, os.ErrDeadlineExceeded)
			expect(t, "error of SetReadDeadline", c.SetReadDeadline(time.Time{}), nil)
			s.within(t, "an answer", func() error { return exchange(c, "hello") })
		}),
		forwardRule("ctx covers the connecting only", func(t testingT, s *sandbox) {
			_, address := s.server(t, "serve", "tcp", "127.0.0.1:0")
			ctx, cancel := context.WithCancel(t.Context())
			c, err := primitives.Dial(ctx, s.EnvironmentPrimitive, "tcp", address)
			expect(t, "error of Dial", err, nil)
			l, err := primitives.Listen(ctx, s.EnvironmentPrimitive, "tcp", "127.0.0.1:0")
			expect(t, "error of Listen", err, nil)
			cancel()
			s.within(t, "an answer, a while later", func() error {
				_ = c.SetReadDeadline(time.Now().Add(s.suite.calm))
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					return fmt.Errorf("reading what is not sent: %w", err)
				}
				_ = c.SetReadDeadline(time.Time{})
				return exchange(c, "hello")
			})
			mine := s.dial(t, "tcp", l.Addr().String())
			s.within(t, "an accepted connection", func() error {
				theirs, err := l.Accept()
				if err != nil {
					return err
				}
				_, err = io.WriteString(theirs, "x")
				_, rerr := io.ReadFull(mine, make([]byte, 1))
				return errors.Join(err, rerr, theirs.Close())
			})
			expect(t, "errors of Close", errors.Join(c.Close(), l.Close()), nil)
			_, err = primitives.Dial(ctx, s.EnvironmentPrimitive, "tcp", address)
			expectError(t, "Dial", err, context.Canceled)
			_, err = primitives.Listen(ctx, s.EnvironmentPrimitive, "tcp", "127.0.0.1:0")
			expectError(t, "Listen", err, context.Canceled)
		}),
	}
}

// forwardEdges returns the rules about unreachable addresses and closed listeners.
func forwardEdges() []rule {
	return []rule{
		forwardRule("a listener that is closed frees its address", func(t testingT, s *sandbox) {
			l := s.listen(t, "tcp", "127.0.0.1:0")
			address := l.Addr().String()
			waits := make(chan error, 1)
			s.suite.strays.Go(func() { _, err := l.Accept(); waits <- err })
			_, err := primitives.Listen(t.Context(), s.EnvironmentPrimitive, "tcp", address)
			expectError(t, "Listen on an address in use", err, syscall.EADDRINUSE)
			expect(t, "error of Close", l.Close(), nil)
			eventually(t, s.suite.patience, func() error { // a program that is being started has the socket until its exec
				again, err := primitives.Listen(t.Context(), s.EnvironmentPrimitive, "tcp", address)
				if err != nil {
					return fmt.Errorf("the address of a closed listener is not free: %w", err)
				}
				return again.Close()
			})
			s.within(t, "Accept to return", func() error { err = <-waits; return nil })
			expectIs(t, "Accept", err, net.ErrClosed)
			expectIs(t, "second Close", l.Close(), net.ErrClosed)
			socket := s.listen(t, "unix", s.in("gone"))
			expect(t, "error of Close", socket.Close(), nil)
			_, err = s.Stat(t.Context(), s.in("gone"))
			expectError(t, "Stat of the socket", err, fs.ErrNotExist)
		}),
		forwardRule("what cannot be reached says why", func(t testingT, s *sandbox) {
			const nobody = "127.0.0.1:1" // any other free port may belong to another test when it is dialed
			for _, tt := range []struct {
				network, address string
				want             error
			}{
				{"tcp", nobody, syscall.ECONNREFUSED},
				{"unix", s.in("none"), fs.ErrNotExist},
				{"unix", "../../s", primitives.ErrPathEscape},
				{"unix", "", fs.ErrInvalid},
				{"unix", "a\x00b", fs.ErrInvalid},
				{"tcp", "8080", fs.ErrInvalid},
				{"tcp", "127.0.0.1:99999", fs.ErrInvalid},
				{"udp", "127.0.0.1:53", fs.ErrInvalid},
			} {
				_, err := primitives.Dial(t.Context(), s.EnvironmentPrimitive, tt.network, tt.address)
				expectError(t, "Dial "+tt.network+" "+tt.address, err, tt.want)
				if errors.Is(tt.want, fs.ErrInvalid) || errors.Is(tt.want, primitives.ErrPathEscape) {
					_, err = primitives.Listen(t.Context(), s.EnvironmentPrimitive, tt.network, tt.address)
					expectError(t, "Listen "+tt.network+" "+tt.address, err, tt.want)
				}
			}
			expect(t, "output afterwards", s.probed(t, "out", "here"), "here")
		}),
		ownForwardRule("Terminate ends listeners and connections", func(t testingT, s *sandbox) {
			s.expectForwardsEnd(t, primitives.ErrTerminated, func() { s.terminate(t) })
		}),
		ownForwardRule("Close of the handle ends listeners and connections", func(t testingT, s *sandbox) {
			s.expectForwardsEnd(t, primitives.ErrUnavailable, func() { s.within(t, "Close", s.Close) })
		}),
	}
}

// expectForwardsEnd expects that a listener and a connection end with an error, not with
// io.EOF.
func (s *sandbox) expectForwardsEnd(t testingT, want error, end func()) {
	t.Helper()
	_, address := s.server(t, "serve", "tcp", "127.0.0.1:0")
	c := s.dial(t, "tcp", address)
	s.within(t, "an answer", func() error { return exchange(c, "hello") })
	l := s.listen(t, "tcp", "127.0.0.1:0")
	accepted, read := make(chan error, 1), make(chan error, 1)
	s.suite.strays.Go(func() { _, err := l.Accept(); accepted <- err })
	s.suite.strays.Go(func() { _, err := io.Copy(io.Discard, c); read <- err })
	end()
	var err error
	s.within(t, "Accept to return", func() error { err = <-accepted; return nil })
	expectError(t, "Accept", err, want)
	s.within(t, "Read to return", func() error {
		if err := <-read; err == nil {
			return errors.New("the connection ended as if all data had come")
		}
		return nil
	})
	_, err = primitives.Dial(t.Context(), s.EnvironmentPrimitive, "tcp", address)
	expectError(t, "Dial", err, want)
	_, err = primitives.Listen(t.Context(), s.EnvironmentPrimitive, "tcp", "127.0.0.1:0")
	expectError(t, "Listen", err, want)
}
