package remote

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// silence is how long a stream may have neither an event nor a heartbeat before it counts as broken.
	silence = 3 * sessionapi.Heartbeat
	// maxLine limits a line of a stream: 256 MiB.
	maxLine = 256 << 20
)

// Events returns the session's events, from the one whose Seq is from (zero means the first), then those that happen from now
// on, without a gap and without repetition, also if the connection breaks meanwhile. The sequence ends without an error when
// the session is closed, or was closed before and has no query to go on with, and otherwise with the error of ctx or of the
// server; see session.AgentSession.Events. It may be used more than once, and each use by one goroutine at a time.
func (s *Session) Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		f := &follower{session: s, next: max(from, 1), tries: s.client.tries(), yield: yield}
		for !f.stopped {
			err := f.stream(ctx)
			if _, again := errors.AsType[*broken](err); again {
				err = f.tries.next(ctx, err)
				if err == nil {
					continue
				}
			}
			if err != nil && !f.stopped {
				yield(runnerscripts.Event{}, err)
			}
			return
		}
	}
}

// errTooLong means that the other end is no agentenv server.
var errTooLong = errors.New("a line of the server's events is longer than 256 MiB")

// errStopped means that the caller has left its loop.
var errStopped = errors.New("the reader stops")

// follower reads the events of a session over one connection after another.
type follower struct {
	session *Session
	next    uint64 // Seq of the next event
	tries   *tries
	yield   func(runnerscripts.Event, error) bool
	stopped bool        // the caller has left its loop
	quiet   *time.Timer // ends a connection that is silent
}

// stream reads one connection to its end. It returns nil when the session was closed.
func (f *follower) stream(ctx context.Context) error {
	c := f.session.client
	streaming, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := c.request(streaming, http.MethodGet, f.session.path("events"), nil, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set(sessionapi.LastEventID, strconv.FormatUint(f.next-1, 10))
	quiet := time.AfterFunc(silence, func() { cancel(&broken{errors.New("the server says nothing any more")}) })
	defer quiet.Stop()
	res, err := c.do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it was only read
	f.quiet = quiet
	err = f.read(bufio.NewReaderSize(res.Body, 64<<10))
	if _, cut := errors.AsType[*broken](err); cut && streaming.Err() != nil {
		return context.Cause(streaming)
	}
	return err
}

// message is one message of a stream, as of the section "Server-sent events" of the HTML standard.
type message struct {
	kind string
	data []byte
}

// read passes on the events of a stream.
func (f *follower) read(r *bufio.Reader) error {
	var m message
	for {
		line, err := readLine(r)
		if errors.Is(err, errTooLong) {
			return err
		}
		if err != nil {
			return &broken{err}
		}
		f.quiet.Reset(silence)
		f.tries.received()
		if len(line) > 0 {
			m.field(line)
			continue
		}
		done, err := f.take(m)
		if done || err != nil {
			return err
		}
		m = message{}
	}
}

// field adds a line to the message. The server sends data on one line; its id is the Seq of the event, which the data has.
func (m *message) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		m.kind = string(value)
	case "data":
		m.data = value
	}
}

// take handles a message. done says that nothing follows.
func (f *follower) take(m message) (done bool, err error) {
	switch m.kind {
	case sessionapi.EventEnd:
		return true, nil
	case sessionapi.EventShutdown:
		return true, &broken{errors.New("the server stops")}
	case sessionapi.EventError:
		var said apierror.Body
		if err := json.Unmarshal(m.data, &said); err != nil {
			return true, fmt.Errorf("the server ended the events without a reason: %w", err)
		}
		return true, sessionapi.Codes().Err(said.Error)
	}
	if m.kind != "" || m.data == nil {
		return false, nil // of a newer server, or a heartbeat
	}
	ev, err := runnerscripts.DecodeEvent(m.data)
	if err != nil {
		return true, fmt.Errorf("an event of the server cannot be read: %w", err)
	}
	if ev.Seq != f.next {
		return true, fmt.Errorf("the server sent event %d in place of %d", ev.Seq, f.next)
	}
	f.next++
	f.quiet.Stop() // the loop of the caller may take its time
	defer f.quiet.Reset(silence)
	if !f.yield(ev, nil) {
		f.stopped = true
		return true, errStopped
	}
	return false, nil
}

// readLine returns a line without its end. The bytes are the caller's.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, errTooLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}
