package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Send sends a request to an API.
type Send = func(*http.Request) (*http.Response, error)

// Recorder records calls. Its methods may be called from several goroutines.
type Recorder struct {
	places  Places
	secrets []string
	masks   []Mask

	mu  sync.Mutex
	w   io.Writer
	err error // of writing
}

// NewRecorder starts a recording. It replaces each of secrets by [redacted] in what it writes.
func NewRecorder(w io.Writer, places Places, secrets []string) (*Recorder, error) {
	r := &Recorder{w: w, places: places, secrets: secrets, masks: standard()}
	if err := compile(r.masks); err != nil {
		return nil, err
	}
	return r, r.write(header{Format: format, Version: version, Masks: r.masks})
}

// write writes a line with a single Write, so that a crash damages at most the last line.
func (r *Recorder) write(line any) error {
	data, err := json.Marshal(line)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		_, r.err = r.w.Write(append(data, '\n'))
	}
	return r.err
}

// Err returns why the recording stopped, or nil if everything was written.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// fail stores the error that stops the recording.
func (r *Recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// errTooLarge stops a recording.
var errTooLarge = fmt.Errorf("an answer of a model has more than %d MiB, and the recording ends before it", maxAnswer>>20)

// Form returns the form of a call, which Send records. For a large call it takes seconds.
func (r *Recorder) Form(body []byte) string { return r.clean(formOf(body, r.places, r.masks)) }

// Send sends a call with next, and records it when its answer has been read to EOF. It does not
// record an answer that the agent abandoned, or a call that the API could not answer.
func (r *Recorder) Send(api runnerscripts.ModelAPI, path, form string, req *http.Request, next Send) (*http.Response, error) {
	resp, err := next(req)
	if err != nil {
		return nil, err
	}
	e := exchange{
		Call: req.Method + " " + string(api) + path, Form: form,
		Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"),
	}
	resp.Body = &recorded{ReadCloser: resp.Body, tooLarge: func() { r.fail(errTooLarge) }, end: func(answer string) {
		e.Answer = r.clean(r.places.mask(answer))
		_ = r.write(e) // Err returns the error
	}}
	return resp, nil
}

// clean replaces the secrets by [redacted].
func (r *Recorder) clean(text string) string {
	for _, secret := range r.secrets {
		text = strings.ReplaceAll(text, secret, "[redacted]")
	}
	return text
}

// recorded buffers an answer while the agent reads it.
type recorded struct {
	io.ReadCloser
	kept     bytes.Buffer
	end      func(answer string)
	tooLarge func()
}

func (b *recorded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case b.end == nil:
	case b.kept.Len()+n > maxAnswer:
		b.kept, b.end = bytes.Buffer{}, nil
		b.tooLarge()
	default:
		b.kept.Write(p[:n])
	}
	if err == io.EOF {
		b.finish()
	}
	return n, err
}

// Close records a stream whose last event was read, because agents do not read on to EOF.
func (b *recorded) Close() error {
	tail := b.kept.Bytes()[max(0, b.kept.Len()-64<<10):]
	for _, last := range []string{"event: message_stop", "data: [DONE]", "event: response.completed"} {
		if bytes.Contains(tail, []byte(last)) && bytes.HasSuffix(tail, []byte("\n\n")) {
			b.finish()
		}
	}
	return b.ReadCloser.Close()
}

func (b *recorded) finish() {
	if b.end != nil {
		b.end(b.kept.String())
	}
	b.end = nil
}
