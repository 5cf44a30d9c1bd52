package runnerscripts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

// benchLine is an event of about 220 bytes.
const benchLine = `{"type":"agent_message_chunk","payload":{"blockId":"turn-1-block-3","content":{"type":"text","text":"I am the script agent"}},"session_id":"s1","conversation_id":"main","source":"runner","time":"2026-11-21T09:12:04.056Z"}` + "\n"

// BenchmarkDecode measures lines a second of the three ways to read events,
// against encoding/json in the same run.
func BenchmarkDecode(b *testing.B) {
	stream := bytes.Repeat([]byte(benchLine), 10_000)
	b.Run("base/encoding-json", func(b *testing.B) {
		decodeAll(b, stream, func(r io.Reader) func() error {
			dec := json.NewDecoder(r)
			return func() error {
				var ev rs.Event
				return dec.Decode(&ev)
			}
		})
	})
	b.Run("ours/typed", func(b *testing.B) {
		decodeAll(b, stream, func(r io.Reader) func() error {
			dec := rs.NewDecoder(r, 0)
			return func() error {
				_, err := dec.Next()
				return err
			}
		})
	})
	b.Run("ours/lazy", func(b *testing.B) {
		decodeAll(b, stream, func(r io.Reader) func() error {
			lines := rs.NewLineReader(r, 0)
			return func() error {
				line, err := lines.Next()
				if err == nil && rs.TypeOf(line) != rs.TypeAgentMessage {
					err = errors.New("wrong type")
				}
				return err
			}
		})
	})
}

// decodeAll reads the stream repeatedly. An operation is one line.
func decodeAll(b *testing.B, stream []byte, open func(io.Reader) func() error) {
	b.ReportAllocs()
	b.SetBytes(int64(len(benchLine)))
	var next func() error
	for range b.N {
		if next == nil {
			next = open(bytes.NewReader(stream))
		}
		err := next()
		if errors.Is(err, io.EOF) {
			next = open(bytes.NewReader(stream))
			err = next()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mlines/s")
}

func BenchmarkEncode(b *testing.B) {
	ev, err := rs.DecodeEvent([]byte(benchLine))
	if err != nil {
		b.Fatal(err)
	}
	enc := rs.NewEncoder(io.Discard)
	b.ReportAllocs()
	for b.Loop() {
		if err := enc.Encode(ev); err != nil {
			b.Fatal(err)
		}
	}
}
