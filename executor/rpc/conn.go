package rpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// The limits of a connection.
const (
	// MaxMessage is the longest message, in bytes. A longer one ends the connection.
	MaxMessage = 8 << 20
	// MaxCalls is how many requests of the other side run at once. Others get [CodeLimit].
	MaxCalls = 64

	writeTimeout = 30 * time.Second // for one message that the other side does not read
)

// Handler answers a request, or handles a notification, whose result is ignored. ctx is done when the
// request is cancelled or the connection ends. Nothing is read while a notification is handled, so only
// [Conn.Close] ends its ctx.
type Handler func(ctx context.Context, method string, params json.RawMessage) (any, error)

// Conn is one side of a connection: messages in both directions, a JSON object a line. Its methods
// may be called from several goroutines.
type Conn struct {
	conn   net.Conn
	handle Handler
	stop   context.CancelFunc // ends the contexts of handlers
	pending
	serving sync.WaitGroup
	done    chan struct{}

	writing sync.Mutex

	mu       sync.Mutex
	inflight map[string]context.CancelFunc // requests of the other side
	err      error                         // why the connection has ended
}

// NewConn returns a connection, whose requests handle answers. The caller must close it.
func NewConn(ctx context.Context, c net.Conn, handle Handler) *Conn {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &Conn{conn: c, handle: handle, stop: stop, done: make(chan struct{}), inflight: map[string]context.CancelFunc{}}
	go func() {
		err := r.read(life)
		stop()
		_ = c.Close() // read has the error
		r.serving.Wait()
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		r.abandon()
		close(r.done)
	}()
	return r
}

// Done is closed when the connection has ended and no handler runs any more.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection has ended: nil for the end of the stream. It is valid after Done.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection, cancels the running handlers and waits for them.
func (c *Conn) Close() error {
	err := c.conn.Close()
	c.stop()
	<-c.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// read reads messages until the end of the connection.
func (c *Conn) read(life context.Context) error {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		line, err := readLine(in)
		switch {
		case errors.Is(err, errTooLong):
			_ = c.write(reply(life, nil, nil, Errorf(CodeLimit, "send at most %d bytes a message", MaxMessage)))
			return err
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		case len(line) == 0:
			continue
		}
		m, failed := parse(line)
		if failed != nil {
			if err := c.write(reply(life, m.ID, nil, failed)); err != nil {
				return err
			}
			continue
		}
		if err := c.dispatch(life, m); err != nil {
			return err
		}
	}
}

var errTooLong = fmt.Errorf("a message is longer than %d bytes", MaxMessage)

// readLine returns the next line without its end, at most MaxMessage long.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		if len(line)+len(piece) > MaxMessage+1 {
			return nil, errTooLong
		}
		line = append(line, piece...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, err // a line without its end is no message
		}
		return line[:len(line)-1], nil
	}
}

// dispatch handles one message. It does not wait for handlers of requests.
func (c *Conn) dispatch(life context.Context, m message) error {
	switch {
	case m.Method == "":
		c.answered(m)
	case m.Method == methodCancel:
		var p struct {
			ID json.RawMessage `json:"id"`
		}
		_ = json.Unmarshal(m.Params, &p) // without an ID it cancels nothing
		c.mu.Lock()
		cancel := c.inflight[string(p.ID)]
		c.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	case len(m.ID) == 0:
		_, _ = c.handle(life, m.Method, m.Params) // in order; a notification has no answer
	default:
		return c.serve(life, m)
	}
	return nil
}

// serve starts the handler of a request.
func (c *Conn) serve(life context.Context, m message) error {
	id := string(m.ID)
	ctx, cancel := context.WithCancel(life)
	c.mu.Lock()
	_, twice := c.inflight[id]
	full := len(c.inflight) >= MaxCalls
	if !twice && !full {
		c.inflight[id] = cancel
	}
	c.mu.Unlock()
	switch {
	case twice:
		cancel()
		return c.write(reply(life, m.ID, nil, Errorf(CodeInvalidRequest, "give each request an id of its own: one with the id %s still runs", id)))
	case full:
		cancel()
		return c.write(reply(life, m.ID, nil, Errorf(CodeLimit, "at most %d requests run at once; wait for an answer", MaxCalls)))
	}
	c.serving.Go(func() {
		defer cancel()
		result, err := c.handle(ctx, m.Method, m.Params)
		answer := reply(ctx, m.ID, result, err)
		c.mu.Lock()
		delete(c.inflight, id)
		c.mu.Unlock()
		if err := c.write(answer); err != nil && c.write(reply(ctx, m.ID, nil, err)) != nil { // it may be too long
			_ = c.conn.Close() // else the other side would wait for it
		}
	})
	return nil
}

// write writes one message. The connection ends if the other side does not read it.
func (c *Conn) write(m message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(data) > MaxMessage {
		return Errorf(CodeLimit, "a message has %d bytes; at most %d are sent", len(data), MaxMessage)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err = c.conn.Write(append(data, '\n')); err != nil {
		_ = c.conn.Close() // a part of the line may have been sent
	}
	return err
}

// Call sends a request and decodes the result, unless result is nil. Its error wraps an [*Error] if
// the other side answered with one, wraps [ErrClosed] if the connection has ended, or is the cause of
// ctx: the other side is then asked to cancel the request.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	return c.call(ctx, c.write, c.done, method, params, result)
}

// Notify sends a notification.
func (c *Conn) Notify(method string, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return c.write(message{JSONRPC: "2.0", Method: method, Params: raw})
}

// pending has the requests that wait for an answer. The zero value is ready to use.
type pending struct {
	mutex   sync.Mutex
	last    int
	waiting map[string]chan message
	ended   bool
}

// call sends a request with write and waits for its answer, until done is closed.
func (p *pending) call(ctx context.Context, write func(message) error, done <-chan struct{}, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer := make(chan message, 1)
	p.mutex.Lock()
	if p.ended {
		p.mutex.Unlock()
		return fmt.Errorf("%s: %w", method, ErrClosed)
	}
	p.last++
	id := strconv.Itoa(p.last)
	if p.waiting == nil {
		p.waiting = map[string]chan message{}
	}
	p.waiting[id] = answer
	p.mutex.Unlock()
	defer func() {
		p.mutex.Lock()
		delete(p.waiting, id)
		p.mutex.Unlock()
	}()
	if err := write(message{JSONRPC: "2.0", ID: json.RawMessage(id), Method: method, Params: raw}); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case m := <-answer:
		return m.decode(method, result)
	case <-done:
		select {
		case m := <-answer: // the last message of the other side
			return m.decode(method, result)
		default:
			return fmt.Errorf("%s: %w", method, ErrClosed)
		}
	case <-ctx.Done():
		cancelled := json.RawMessage(`{"id":` + id + `}`)
		_ = write(message{JSONRPC: "2.0", Method: methodCancel, Params: cancelled}) // the request is over in any case
		return fmt.Errorf("%s: %w", method, context.Cause(ctx))
	}
}

func (m message) decode(method string, result any) error {
	if m.Error != nil {
		return fmt.Errorf("%s: %w", method, m.Error)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.Result, result); err != nil {
		return fmt.Errorf("%s: the answer is not understood: %w", method, err)
	}
	return nil
}

// answered passes an answer to its request. One that nothing waits for is dropped: the request may
// have been cancelled.
func (p *pending) answered(m message) {
	p.mutex.Lock()
	answer := p.waiting[string(m.ID)]
	delete(p.waiting, string(m.ID))
	p.mutex.Unlock()
	if answer != nil {
		answer <- m
	}
}

// abandon refuses requests from now on.
func (p *pending) abandon() {
	p.mutex.Lock()
	p.ended = true
	p.mutex.Unlock()
}
