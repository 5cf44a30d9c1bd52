package runnerscripts

import (
	"bytes"
	"encoding/json"
	"io"
	"sync"
)

// Encoder writes JSON lines, each with a single Write. It may be used from
// several goroutines at once: lines never mix. A slow writer blocks them all.
type Encoder struct {
	mu  sync.Mutex
	w   io.Writer
	buf bytes.Buffer
	enc *json.Encoder
	err error
}

// NewEncoder returns an encoder that writes to w.
func NewEncoder(w io.Writer) *Encoder {
	e := &Encoder{w: w}
	e.enc = json.NewEncoder(&e.buf)
	e.enc.SetEscapeHTML(false)
	return e
}

// Encode writes v as one line: an [Event], a [Result], a request or a [Control]. After a failed
// write, every call returns that error. If v cannot be marshaled, Encode returns an error and
// writes nothing.
func (e *Encoder) Encode(v any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	e.buf.Reset()
	if err := e.enc.Encode(v); err != nil {
		return err
	}
	return e.flush()
}

// WriteLine writes line unchanged and adds a line end. line must not contain one.
func (e *Encoder) WriteLine(line []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	e.buf.Reset()
	e.buf.Write(line)
	e.buf.WriteByte('\n')
	return e.flush()
}

func (e *Encoder) flush() error {
	_, e.err = e.w.Write(e.buf.Bytes())
	if e.buf.Cap() > keepBuffer {
		e.buf = bytes.Buffer{}
	}
	return e.err
}
