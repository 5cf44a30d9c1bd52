//go:build !race

package runnerscripts

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/primitives"
)

// repeated is a reader that repeats a piece of text without holding the whole in memory.
type repeated struct {
	piece string
	at    int
}

func (r *repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.piece[r.at]
		r.at = (r.at + 1) % len(r.piece)
	}
	return len(p), nil
}

// line returns a line of the given size that starts with begin and ends with end.
func line(begin, piece, end string, size int64) io.Reader {
	return io.MultiReader(
		strings.NewReader(begin), io.LimitReader(&repeated{piece: piece}, size-int64(len(begin)+len(end))), strings.NewReader(end+"\n"),
	)
}

func TestFloodOfLongLinesIsHeldTwiceAtMost(t *testing.T) {
	const begin, end = `{"type":"agent_message_chunk","payload":{"content":{"type":"text","text":"`, `"}}}`
	in := io.MultiReader(line(begin, "x", end, DefaultMaxLine), line(begin, "y", end, DefaultMaxLine))
	testmemory.AtMost(t, 3*DefaultMaxLine, func() {
		dec := NewDecoder(in, 0)
		for range 2 {
			if ev, err := dec.Next(); err != nil || len(ev.Payload) < DefaultMaxLine-100 {
				t.Fatal(len(ev.Payload), err)
			}
		}
		if _, err := dec.Next(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
}

func TestFloodWithoutALineEndIsBounded(t *testing.T) {
	in := io.LimitReader(&repeated{piece: "x"}, 1<<30)
	testmemory.AtMost(t, 3*DefaultMaxLine, func() {
		if _, err := NewDecoder(in, 0).Next(); !errors.Is(err, primitives.ErrLimit) {
			t.Errorf("error %v, want ErrLimit", err)
		}
	})
}

func TestFloodOfValuesInAnEventIsLeftOut(t *testing.T) {
	const begin, piece, end = `{"type":"tool_call","payload":{"content":[{}`, ",{}", `]}}`
	in := line(begin, piece, end, int64(len(begin)+8<<20*len(piece)+len(end)))
	testmemory.AtMost(t, 3*DefaultMaxLine, func() {
		ev, err := NewDecoder(in, 0).Next()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Payload[ToolCall](ev); err != nil {
			t.Error(err)
		}
		if l, err := Payload[Log](ev); ev.Type != TypeLog || err != nil || !bytes.Contains(l.Data, []byte("more than 1048576 values")) {
			t.Errorf("%s: %.500s", ev.Type, ev.Payload)
		}
	})
}
