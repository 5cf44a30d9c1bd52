package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// batch is how many entries are read at once; the others wait in the database for a client that reads slowly.
	batch = 64
	// batchSize is how many bytes end a batch.
	batchSize = 1 << 20
	// heartbeat is the time between comments in a stream without events.
	heartbeat = 30 * time.Second
	// writeTimeout is how long a client may not read.
	writeTimeout = 30 * time.Second
)

// short are the abbreviations in the IDs of events.
var short = map[string]string{kindCreated: "sc", kindUpdated: "su", kindDeleted: "sd", kindEvent: "ev", kindRunFailed: "rf"}

// id returns the ID of an event, <milliseconds>-<kind>-<number>. The number says where a stream goes on.
func (e entry) id() string {
	return fmt.Sprintf("%d-%s-%d", e.time.UnixMilli(), short[e.kind], e.seq)
}

// lastEvent returns the number in the ID of an event; ok is false if there is no ID.
func lastEvent(r *http.Request) (seq uint64, ok bool, err error) {
	id := r.Header.Get("Last-Event-ID")
	if id == "" {
		return 0, false, nil
	}
	seq, err = strconv.ParseUint(id[strings.LastIndexByte(id, '-')+1:], 10, 63)
	if err != nil {
		return 0, false, failf(http.StatusBadRequest, "Last-Event-ID: %q is no ID of an event", id)
	}
	return seq, true, nil
}

// stream sends the changes of sessions: those from now on, after a first event with the sessions, or those after the event that the
// client has seen last. They are those of the sessions that the caller owns, or that its runner had then. A slow client delays nothing: what it has not read stays in the database.
func (c *Coordinator) stream(w http.ResponseWriter, r *http.Request, caller Caller) error {
	q := query{session: r.URL.Query().Get("session_id")}
	if q.session != "" {
		if _, err := c.find(caller, q.session); err != nil {
			return err
		}
	} else if !caller.Admin {
		q.caller = &caller.Name
	}
	after, again, err := lastEvent(r)
	if err != nil {
		return err
	}
	out := newSSE(w)
	if q.after = after; !again {
		if q.after, err = c.db.last(r.Context()); err != nil {
			return err
		}
		if r.URL.Query().Get("include_init") != "false" {
			out.event("", "init", c.initial(caller, q.session))
		}
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		changed := c.waitChange()
		list, more, err := c.db.next(r.Context(), &q)
		if err != nil {
			if r.Context().Err() == nil {
				c.log.Error("events cannot be read", "error", err)
			}
			return nil // the client connects again
		}
		if c.hides(caller, q.session) {
			return nil // another caller's runner has the session now
		}
		for _, e := range list {
			out.event(e.id(), e.kind, e.wire())
		}
		if err := out.flush(); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
		if more {
			continue
		}
		select {
		case <-changed:
		case <-beat.C:
			out.buf.WriteString(":\n\n")
		case <-r.Context().Done():
			return nil
		}
	}
}

// hides reports whether there is a session that a caller does not see.
func (c *Coordinator) hides(caller Caller, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	return s != nil && !caller.sees(s)
}

// wire returns the data of an event.
func (e entry) wire() json.RawMessage {
	if e.kind != kindEvent {
		return e.data
	}
	return append(append([]byte(`{"event":`), e.data...), '}')
}

// initial returns the sessions that a stream begins with.
func (c *Coordinator) initial(caller Caller, id string) json.RawMessage {
	list := c.visible(caller)
	if id != "" {
		kept := list[:0]
		for _, s := range list {
			if s.ID == id {
				kept = append(kept, s)
			}
		}
		list = kept
	}
	data, err := json.Marshal(map[string]any{"sessions": list})
	if err != nil {
		c.log.Error("sessions cannot be written", "error", err)
	}
	return data
}

// sse writes server-sent events.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
}

func newSSE(w http.ResponseWriter) *sse {
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("X-Accel-Buffering", "no") // for nginx
	return &sse{w: w, control: http.NewResponseController(w)}
}

// event adds an event.
func (o *sse) event(id, kind string, data json.RawMessage) {
	if id != "" {
		fmt.Fprintf(&o.buf, "id: %s\n", id)
	}
	var line bytes.Buffer
	_ = json.Compact(&line, data) // in one line; it is JSON
	fmt.Fprintf(&o.buf, "event: %s\ndata: %s\n\n", kind, line.Bytes())
}

// flush sends what was added, and the header.
func (o *sse) flush() error {
	_ = o.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer of a test may have none
	_, err := o.w.Write(o.buf.Bytes())
	o.buf.Reset()
	return errors.Join(err, o.control.Flush())
}

// until returns when something may have changed, or when the time is over. It reports whether to look again.
func until(ctx context.Context, changed <-chan struct{}, end, again <-chan time.Time) bool {
	select {
	case <-changed:
	case <-again:
	case <-end:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}
