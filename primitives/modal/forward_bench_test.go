package modal_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// BenchmarkForwardedCalls reports the API calls per KiB that goes into the sandbox over a
// forwarded connection and comes back.
func BenchmarkForwardedCalls(b *testing.B) {
	s := newServer(b)
	box := open(b, config(b))
	l, err := primitives.Listen(b.Context(), box, "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	out, err := primitives.Dial(b.Context(), box, "tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	const total = 4 << 20
	for _, size := range []int{1 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("in pieces of %d KiB", size>>10), func(b *testing.B) {
			b.SetBytes(total)
			made := 0
			for b.Loop() {
				for _, n := range calls(s, func() { send(b, out, in, total, size) }) {
					made += n
				}
			}
			b.ReportMetric(float64(made)/float64(b.N)/(total>>10), "calls/KiB")
		})
	}
}

// send writes total bytes to out in pieces of size and reads them from in.
func send(b *testing.B, out, in net.Conn, total, size int) {
	failed := make(chan error, 1)
	go func() {
		data := make([]byte, size)
		for range total / size {
			if _, err := out.Write(data); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	if _, err := io.CopyN(io.Discard, in, int64(total)); err != nil {
		b.Fatal(err)
	}
	if err := <-failed; err != nil {
		b.Fatal(err)
	}
}
