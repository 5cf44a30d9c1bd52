package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/session"
)

const (
	// rememberFor is how long the answer to a change is remembered. A client tries again for a minute.
	rememberFor = 10 * time.Minute
	// maxKey limits the key of a change, in bytes.
	maxKey = 256
)

// once makes each change once: a client whose connection broke sends it again, under the same key. It forgets the keys when the
// server ends.
type once struct {
	mu    sync.Mutex
	calls map[string]*change
	swept time.Time
}

// change is a request that is being answered, or was.
type change struct {
	body   [sha256.Size]byte
	made   time.Time     // when it was answered
	done   chan struct{} // closed when answer and made are set
	answer recorded
}

// recorded is an answer that is kept.
type recorded struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *recorded) Header() http.Header         { return r.header }
func (r *recorded) Write(p []byte) (int, error) { return r.body.Write(p) }
func (r *recorded) WriteHeader(status int)      { r.status = status }

// passes reports whether the answer is a refusal that may pass: the same request may be made when it comes again.
func (r *recorded) passes() bool {
	var said apierror.Body
	if r.status < http.StatusBadRequest || json.Unmarshal(r.body.Bytes(), &said) != nil {
		return false
	}
	err := sessionapi.Codes().Err(said.Error)
	return errors.Is(err, sessionapi.ErrMoving) || errors.Is(err, session.ErrBusy) || errors.Is(err, apierror.ErrTooMany)
}

// serve answers a change, unless one with the same key was answered before: then it gives the same answer. A change goes on
// when its client has gone.
func (o *once) serve(w http.ResponseWriter, r *http.Request, body []byte, do func(http.ResponseWriter, *http.Request)) error {
	key := r.Header.Get(sessionapi.KeyHeader)
	if key == "" {
		do(w, r)
		return nil
	}
	if len(key) > maxKey {
		return fmt.Errorf("%w: the header %s has more than %d bytes", fs.ErrInvalid, sessionapi.KeyHeader, maxKey)
	}
	c, mine := o.begin(callerOf(r.Context()).Name+" "+r.Method+" "+r.URL.Path+" "+key, sha256.Sum256(body))
	if c == nil {
		return fmt.Errorf("%w: another request has used the same %s", fs.ErrInvalid, sessionapi.KeyHeader)
	}
	if mine {
		detached := r.WithContext(context.WithoutCancel(r.Context()))
		o.make(c, func() { do(&c.answer, detached) })
	}
	select {
	case <-c.done:
	case <-r.Context().Done():
		return context.Cause(r.Context())
	}
	if c.answer.status == http.StatusInternalServerError && c.answer.body.Len() == 0 { // it panicked, in the other request
		return apierror.ErrInternal
	}
	maps.Copy(w.Header(), c.answer.header)
	w.WriteHeader(c.answer.status)
	_, _ = io.Copy(w, bytes.NewReader(c.answer.body.Bytes())) // the client asks again
	return nil
}

// make makes a change. One that panics may be made again, and one whose refusal may pass.
func (o *once) make(c *change, do func()) {
	ended := false
	defer func() {
		if !ended {
			c.answer.status = http.StatusInternalServerError
		}
		if !ended || c.answer.passes() {
			o.mu.Lock()
			maps.DeleteFunc(o.calls, func(_ string, other *change) bool { return other == c })
			o.mu.Unlock()
		}
		c.made = time.Now()
		close(c.done)
	}()
	do()
	ended = true
}

// begin returns the change with a key, and whether the caller is to make it; nil if that had another body.
func (o *once) begin(key string, body [sha256.Size]byte) (c *change, mine bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if now.Sub(o.swept) > rememberFor/10 {
		o.swept = now
		maps.DeleteFunc(o.calls, func(_ string, c *change) bool {
			select {
			case <-c.done:
				return now.Sub(c.made) > rememberFor
			default:
				return false
			}
		})
	}
	if c := o.calls[key]; c != nil {
		if c.body != body {
			return nil, false
		}
		return c, false
	}
	if o.calls == nil {
		o.calls = make(map[string]*change)
	}
	c = &change{body: body, done: make(chan struct{}), answer: recorded{status: http.StatusOK, header: make(http.Header)}}
	o.calls[key] = c
	return c, true
}
