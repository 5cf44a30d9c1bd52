package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

const (
	// ahead is how many events wait for a client that reads slowly; the others wait in the store.
	ahead = 64
	// maxBatch is how many bytes of events are written at once.
	maxBatch = 64 << 10
	// writeTimeout is how long a client may not read. It connects again, and goes on where it was.
	writeTimeout = 30 * time.Second
)

// next is an event, or the error that ends them.
type next struct {
	ev  runnerscripts.Event
	err error
}

// events streams the events of a session. A client that reads slowly holds up neither the session nor others: its events wait
// in the store. The stream of a session that is not open and has nothing to do ends after the stored events.
func (s *Server) events(w http.ResponseWriter, c *call) error {
	from, err := firstEvent(c)
	if err != nil {
		return err
	}
	read, err := s.reader(c)
	if err != nil {
		return err
	}
	s.follow(w, c.Request, func(ctx context.Context) iter.Seq2[runnerscripts.Event, error] { return read(ctx, from) })
	return nil
}

// follow streams events until they end, the client has gone or the server stops.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, events func(context.Context) iter.Seq2[runnerscripts.Event, error]) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	all := make(chan next, ahead)
	go func() { // it ends with ctx
		defer close(all)
		for ev, err := range events(ctx) {
			select {
			case all <- next{ev, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	out := newSSE(w)
	if err := out.flush(); err == nil { // the client learns that it is connected
		s.pass(out, r, all)
	}
	cancel(nil)
	for range all { // until the goroutine has ended
	}
}

// reader returns how to read the events of the session that the path names. It opens a session only to resume its queries,
// for example after a restart of the server.
func (s *Server) reader(c *call) (func(context.Context, uint64) iter.Seq2[runnerscripts.Event, error], error) {
	if open := s.opened(c); open != nil {
		return open.Events, nil
	}
	st, id := s.cfg.Host.Store(), c.PathValue("id")
	state, err := session.ReadState(c.Context(), st, id)
	if err != nil {
		return nil, err
	}
	if state.Query == nil && len(state.Queued) == 0 {
		return func(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
			return st.Events(ctx, id, from)
		}, nil
	}
	open, err := s.session(c)
	if err != nil {
		return nil, err
	}
	return open.Events, nil
}

// firstEvent returns the Seq of the first event that the client wants.
func firstEvent(c *call) (uint64, error) {
	from := c.query.number("from")
	if c.query.err != nil {
		return 0, c.query.err
	}
	if last := c.Header.Get(sessionapi.LastEventID); last != "" {
		n, err := strconv.ParseUint(last, 10, 63)
		if err != nil {
			return 0, fmt.Errorf("%w: the header %s: %q is no number of an event", fs.ErrInvalid, sessionapi.LastEventID, last)
		}
		from = n + 1
	}
	return from, nil
}

// pass writes events until they end, the client has gone or the server stops.
func (s *Server) pass(out *sse, r *http.Request, all <-chan next) {
	beat := time.NewTicker(s.heartbeat)
	defer beat.Stop()
	for {
		select {
		case n, more := <-all:
			if done := s.passOne(out, r, n, more); done {
				return
			}
			if len(all) > 0 && out.buf.Len() < maxBatch {
				continue
			}
		case <-beat.C:
			out.buf.WriteString(":\n\n")
		case <-s.draining:
			out.event(sessionapi.EventShutdown, []byte("{}"))
			_ = out.flush() // the last one
			return
		}
		if out.flush() != nil {
			return
		}
	}
}

// passOne writes one event. done says that it was the last one.
func (s *Server) passOne(out *sse, r *http.Request, n next, more bool) (done bool) {
	switch {
	case r.Context().Err() != nil: // the client has gone, or its time is over: nothing says that the session has ended
		return true
	case !more:
		select {
		case <-s.draining: // the session was closed because the server stops
			out.event(sessionapi.EventShutdown, []byte("{}"))
		default:
			out.event(sessionapi.EventEnd, []byte("{}"))
		}
	case s.moves(n.err):
		out.event(sessionapi.EventShutdown, []byte("{}"))
	case n.err != nil:
		_, said := s.describe(r, n.err)
		data, err := json.Marshal(apierror.Body{Error: said})
		if err != nil {
			data = []byte("{}")
		}
		out.event(sessionapi.EventError, data)
	default:
		out.session(n.ev)
		return false
	}
	_ = out.flush() // the last one
	return true
}

// sse writes server-sent events; see that section of the HTML standard.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
	enc     *runnerscripts.Encoder
}

func newSSE(w http.ResponseWriter) *sse {
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("X-Accel-Buffering", "no") // for nginx
	w.WriteHeader(http.StatusOK)
	out := &sse{w: w, control: http.NewResponseController(w)}
	out.enc = runnerscripts.NewEncoder(&out.buf)
	return out
}

// session adds an event of the session.
func (o *sse) session(ev runnerscripts.Event) {
	o.buf.WriteString("id: ")
	o.buf.WriteString(strconv.FormatUint(ev.Seq, 10))
	o.buf.WriteString("\ndata: ")
	_ = o.enc.Encode(ev) // one line of JSON; a buffer fails never
	o.buf.WriteByte('\n')
}

// event adds an event of the stream itself.
func (o *sse) event(kind string, data []byte) {
	fmt.Fprintf(&o.buf, "event: %s\ndata: %s\n\n", kind, data)
}

// flush sends what was added.
func (o *sse) flush() error {
	_ = o.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer of a test may have none
	_, err := o.w.Write(o.buf.Bytes())
	o.buf.Reset()
	return errors.Join(err, o.control.Flush())
}
