package guest

import (
	"io"
	"net"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// FuzzClient checks that each call of the host returns, whatever a guest answers.
func FuzzClient(f *testing.F) {
	f.Add(appendFrame(nil, frameReply, []byte{0}))
	f.Add(append(appendFrame(nil, frameReply, nil), appendFrame(nil, frameData, []byte("x"))...))
	f.Add(appendHeader(nil, frameReply|frameMore, 10))
	f.Add(append(appendFrame(nil, frameReply, nil), appendHeader(nil, frameEnd, 0)...))
	f.Add(append(appendFrame(nil, frameReply, encode(&endpoints{Network: "tcp", Local: "127.0.0.1:1"})), appendFrame(nil, frameItem, encode(&announcement{Token: 1}))...))
	f.Fuzz(func(t *testing.T, answer []byte) {
		c := scriptedGuest(t, func(g *framer) {
			_, _ = g.Write(answer)
		})
		_, _ = c.Stat(t.Context(), "x")
		_, _ = c.List(t.Context(), "x", primitives.ListOptions{})
		_, _ = c.WriteFiles(t.Context(), []primitives.File{{Path: "x"}})
		if r, err := c.Open(t.Context(), "x"); err == nil {
			_, _ = io.Copy(io.Discard, r)
			_ = r.Close()
		}
		_, _ = c.Run(t.Context(), primitives.Command{Args: []string{"x"}}, primitives.RunOptions{})
		if p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"x"}}); err == nil {
			_, _ = io.Copy(io.Discard, p.Stdout())
			_, _ = p.Wait(t.Context())
			_ = p.Close()
		}
		if events, err := c.Watch(t.Context(), "x", primitives.WatchOptions{}); err == nil {
			for range events {
			}
		}
		if conn, err := c.Dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
		if l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
			for err == nil {
				var conn net.Conn
				if conn, err = l.Accept(); err == nil {
					_ = conn.Close()
				}
			}
			_ = l.Close()
		}
		_ = c.Close()
	})
}
