package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/acpserver"
	"github.com/agentenv-dev/agentenv/internal/apierror"
)

const (
	// maxPeers is how many connections a caller that is no admin may have.
	maxPeers = 64
	// maxWaiting is how many bytes of messages wait for a client, and stallTimeout how long it may leave them.
	maxWaiting   = 4 << 20
	stallTimeout = time.Minute
	// peerTimeout is how long a connection lasts while its client receives no messages.
	peerTimeout = 2 * time.Minute
	// maxMailboxes is how many streams a connection has, one for each session.
	maxMailboxes = 1024
)

func newConnectionID() string { return rand.Text() }

// peers are the connections of clients of the Agent Client Protocol.
type peers struct {
	mu     sync.Mutex
	closed bool
	counts map[string]int   // by caller
	known  map[string]*peer // those without a connection of their own, by ID
	work   sync.WaitGroup
}

// begin begins a connection of a caller, which must end when the server stops, until done is called.
func (p *peers) begin(caller Caller) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, errStopping
	case caller.Role != RoleAdmin && p.counts[caller.Name] >= maxPeers:
		return nil, fmt.Errorf("%w: %s has %d connections; close some", apierror.ErrTooMany, caller.Name, maxPeers)
	}
	if p.counts == nil {
		p.counts, p.known = make(map[string]int), make(map[string]*peer)
	}
	p.counts[caller.Name]++
	p.work.Add(1)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.counts[caller.Name]--; p.counts[caller.Name] == 0 {
			delete(p.counts, caller.Name)
		}
		p.work.Done()
	}, nil
}

// stop waits for the end of all connections. The server must be draining.
func (p *peers) stop() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.work.Wait()
}

// find returns a connection of a caller; nil if there is none.
func (p *peers) find(caller Caller, id string) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.known[id]; x != nil && x.caller == caller {
		return x
	}
	return nil
}

func (p *peers) add(x *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[x.id] = x
}

func (p *peers) remove(x *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, x.id)
}

// peer is a connection whose client sends messages in requests, and receives them in streams: one of the connection, and one of
// each session. It is the acpserver.Stream of the connection.
type peer struct {
	id     string
	caller Caller
	in     chan []byte
	ended  chan struct{} // closed when the connection ends
	end    func()

	mu        sync.Mutex
	changed   chan struct{}       // closed and replaced when a message comes or goes
	waiting   int                 // bytes in boxes
	boxes     map[string]*mailbox // by session; that of the connection has no name
	routes    map[string]string   // the session of a request of the client, by its id
	asked     map[string]string   // the session of a request of the agent, by its id
	receivers int
	idle      *time.Timer // ends a connection without receivers
}

// mailbox are messages for a client, oldest first.
type mailbox struct {
	messages [][]byte
	taken    bool // a client receives them
}

func newPeer(caller Caller) *peer {
	p := &peer{
		id: newConnectionID(), caller: caller, in: make(chan []byte), ended: make(chan struct{}), changed: make(chan struct{}),
		boxes: make(map[string]*mailbox), routes: make(map[string]string), asked: make(map[string]string),
	}
	p.end = sync.OnceFunc(func() { close(p.ended) })
	p.idle = time.AfterFunc(peerTimeout, p.end)
	return p
}

var _ acpserver.Stream = (*peer)(nil)

// Read returns the next message of the client.
func (p *peer) Read() ([]byte, error) {
	select {
	case message := <-p.in:
		return message, nil
	case <-p.ended:
		return nil, io.EOF
	}
}

// send passes a message of the client on.
func (p *peer) send(ctx context.Context, message []byte) error {
	select {
	case p.in <- message:
		return nil
	case <-p.ended:
		return errNoPeer
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var (
	errNoPeer  = errors.New("the connection has ended")
	errStalled = errors.New("the client does not receive its messages")
)

// wakeLocked says that a message has come or gone.
func (p *peer) wakeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Write puts a message into its mailbox. It waits for room, until the client has received nothing for a while.
func (p *peer) Write(message []byte) error {
	stalled := time.NewTimer(stallTimeout)
	defer stalled.Stop()
	for {
		p.mu.Lock()
		if p.waiting < maxWaiting {
			err := p.putLocked(message)
			p.mu.Unlock()
			return err
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
			stalled.Reset(stallTimeout)
		case <-stalled.C:
			return errStalled
		case <-p.ended:
			return errNoPeer
		}
	}
}

func (p *peer) putLocked(message []byte) error {
	box, err := p.boxLocked(p.routeLocked(message))
	if err != nil {
		return err
	}
	box.messages = append(box.messages, message)
	p.waiting += len(message)
	p.wakeLocked()
	return nil
}

func (p *peer) boxLocked(session string) (*mailbox, error) {
	box := p.boxes[session]
	if box == nil {
		if len(p.boxes) >= maxMailboxes {
			return nil, fmt.Errorf("%w: a connection has at most %d sessions", apierror.ErrTooMany, maxMailboxes)
		}
		box = new(mailbox)
		p.boxes[session] = box
	}
	return box, nil
}

// receive returns the mailbox of a session for one receiver, which must call done; nil if there is another one.
func (p *peer) receive(session string) (box *mailbox, done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if box, err = p.boxLocked(session); err != nil || box.taken {
		return nil, nil, err
	}
	box.taken = true
	p.receivers++
	p.idle.Stop()
	return box, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if box.taken = false; len(box.messages) == 0 {
			delete(p.boxes, session)
		}
		if p.receivers--; p.receivers == 0 {
			p.idle.Reset(peerTimeout)
		}
	}, nil
}

// first returns the oldest message of a mailbox, and a channel that is closed when another one comes.
func (p *peer) first(box *mailbox) (message []byte, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(box.messages) > 0 {
		message = box.messages[0]
	}
	return message, p.changed
}

// received removes the oldest message of a mailbox.
func (p *peer) received(box *mailbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting -= len(box.messages[0])
	box.messages[0] = nil
	box.messages = box.messages[1:]
	p.wakeLocked()
}
