// Package meter extracts the usage of a model call from its answer while the answer is read.
package meter

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Usage is the usage of one model call, as reported by its API.
type Usage struct {
	Model               string // as named in the answer; empty if it names none
	runnerscripts.Usage        // InputTokens without cached ones; CostUSD stays zero
	HourWriteTokens     int64  // of CacheWriteTokens, those that the cache keeps for an hour
}

// Watch returns the body of an answer with a reader that extracts the usage while the body is
// read. It calls done once, when the body ends, fails or is closed, from the goroutine that
// reads or closes; done must not block. Exact is false if the answer has no usage, is encoded, or
// was cut before it reported all of its usage. Then done receives what it has reported.
//
// The reader passes the bytes on without delay. It keeps at most the bytes of one usage object,
// whatever the size of the answer.
func Watch(api runnerscripts.ModelAPI, resp *http.Response, done func(u Usage, exact bool)) io.ReadCloser {
	encoding := resp.Header.Get("Content-Encoding")
	encoded := encoding != "" && !strings.EqualFold(encoding, "identity")
	return &watcher{body: resp.Body, done: done, encoded: encoded, counter: counter{api: api}}
}

// watcher is the reader that Watch returns.
type watcher struct {
	body    io.ReadCloser
	done    func(Usage, bool)
	encoded bool

	mu      sync.Mutex // a body may be closed while it is read
	ended   bool
	shape   shape
	events  events
	counter counter
}

// shape is the format of an answer.
type shape int

const (
	unknown shape = iota // only white space so far
	plain                // one value, or an array of them
	stream               // server-sent events
)

func (w *watcher) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	w.mu.Lock()
	if !w.encoded {
		w.see(p[:n])
	}
	w.mu.Unlock()
	if err != nil {
		w.end(err == io.EOF)
	}
	return n, err
}

// Close closes the body.
func (w *watcher) Close() error {
	err := w.body.Close()
	w.end(false)
	return err
}

// end ends the answer, which is whole if it was read to its end.
func (w *watcher) end(whole bool) {
	w.mu.Lock()
	ended := w.ended
	w.ended = true
	w.counter.commit()
	u, exact := w.counter.usage, w.counter.exact(whole)
	w.mu.Unlock()
	if !ended {
		w.done(u, exact)
	}
}

// see processes a part of the answer. The first character decides the shape, because no field
// of a server-sent event starts with a bracket.
func (w *watcher) see(b []byte) {
	if w.shape == unknown {
		b = bytes.TrimLeft(b, " \t\r\n\uFEFF")
		if len(b) == 0 {
			return
		}
		w.shape = stream
		if b[0] == '{' || b[0] == '[' {
			w.shape = plain
		}
	}
	if w.shape == plain {
		w.events.data.write(b, &w.counter)
		return
	}
	w.events.write(b, &w.counter)
}
