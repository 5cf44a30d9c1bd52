package acpserver

import (
	"context"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// conversation is a session that the client has opened.
type conversation struct {
	server  *server
	id      acp.SessionId
	paths   *paths
	choices *choices
	updater *updater // used by the goroutine that reads events, and between two of them
	asking  questions

	// attaching is held while the session is opened, and guards the fields below.
	attaching sync.Mutex
	agent     *session.AgentSession
	reading   chan struct{} // closed when the goroutine that reads events has ended; nil if there was none
	stop      context.CancelFunc
	next      uint64 // Seq of the next event; the goroutine's while there is one

	// sending is held while a prompt is accepted, so that its events come after its query is in own.
	sending sync.Mutex
	own     map[string]chan struct{} // the queries of the client; closed when it has the last event

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the running prompt; nil if there is none
}

func newConversation(s *server, id acp.SessionId, folder string) *conversation {
	c := &conversation{server: s, id: id, paths: &paths{folder: folder}, choices: new(choices), own: make(map[string]chan struct{})}
	c.updater = newUpdater(c.paths, s.log, c.choices)
	return c
}

// attach opens the session if it is not open, and reads its events from the one after those that the client has. read is closed
// when no more events are read.
func (c *conversation) attach(life context.Context) (agent *session.AgentSession, read <-chan struct{}, err error) {
	c.attaching.Lock()
	defer c.attaching.Unlock()
	host := c.server.cfg.Host
	if c.reading != nil {
		if host.Opened(string(c.id)) == c.agent {
			select {
			case <-c.reading:
			default:
				return c.agent, c.reading, nil
			}
		}
		select { // the session is being closed
		case <-c.reading:
		case <-life.Done():
			return nil, nil, context.Cause(life)
		}
	}
	if c.agent, err = host.Open(life, string(c.id)); err != nil {
		c.agent = nil
		return nil, nil, err
	}
	c.follow(life)
	return c.agent, c.reading, nil
}

// goOn begins to read events.
func (c *conversation) goOn(life context.Context) {
	if _, _, err := c.attach(life); err != nil {
		c.server.log.Debug("the session is not followed", "session", c.id, "error", err)
	}
}

// follow reads the events of the session in a goroutine. The caller holds attaching.
func (c *conversation) follow(life context.Context) {
	ctx, stop := context.WithCancel(life)
	reading, agent := make(chan struct{}), c.agent
	c.reading, c.stop = reading, stop
	end := func() {
		stop()
		c.release()
		close(reading)
	}
	begun := c.server.begin(func() {
		defer end()
		for ev, err := range agent.Events(ctx, c.next) {
			if err != nil {
				c.server.log.Debug("no more events are read", "session", c.id, "error", err)
				return
			}
			if err := c.take(life, ev); err != nil {
				return // the connection ends
			}
			c.next = ev.Seq + 1
		}
	}, func() {})
	if !begun {
		end()
	}
}

// unfollow ends the goroutine that reads events, and withdraws what it asked. The caller holds attaching.
func (c *conversation) unfollow() {
	if c.reading != nil {
		c.stop()
		<-c.reading
	}
	c.asking.withdraw()
}

// leave ends what goes on in a session that the client has closed.
func (c *conversation) leave() {
	c.attaching.Lock()
	defer c.attaching.Unlock()
	c.unfollow()
}

// release lets the prompts of the client go on whose last events are not read.
func (c *conversation) release() {
	c.sending.Lock()
	defer c.sending.Unlock()
	for _, delivered := range c.own {
		close(delivered)
	}
	clear(c.own)
}

// reopen opens the session, and sends what was said so far if replay is set. The client gets the later events once the
// conversation is attached, and open questions once answered is closed.
func (c *conversation) reopen(ctx, life context.Context, replay bool, answered <-chan struct{}, change func(*session.Config)) (session.State, error) {
	c.attaching.Lock()
	defer c.attaching.Unlock()
	if c.busy() {
		return session.State{}, session.ErrBusy
	}
	c.unfollow()
	agent, err := c.server.cfg.Host.OpenAs(ctx, string(c.id), change)
	if err != nil {
		return session.State{}, err
	}
	state, err := agent.State(ctx)
	if err != nil {
		return state, err
	}
	c.agent = agent
	c.paths.found(state.Environment.Workspace)
	c.updater = newUpdater(c.paths, c.server.log, c.choices)
	if err := c.recall(ctx, state, replay); err != nil {
		return state, err
	}
	c.next = state.LastSeq + 1
	for _, req := range state.Pending {
		c.ask(life, req, answered)
	}
	return state, nil
}

// take sends an event to the client.
func (c *conversation) take(ctx context.Context, ev runnerscripts.Event) error {
	var err error
	tell := func(u acp.SessionUpdate, ok bool) {
		if ok && err == nil {
			err = c.server.tell(ctx, c.id, u)
		}
	}
	switch ev.Type {
	case runnerscripts.TypePermissionRequest:
		req, perr := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
		if perr != nil || req.ID == "" {
			c.server.log.Warn("a request for permission cannot be read", "session", c.id, "error", perr)
			return nil
		}
		c.ask(ctx, req, nil)
		return nil
	case runnerscripts.TypePermissionResolved:
		c.asking.resolved(ev)
		return nil
	case runnerscripts.TypeQueryStarted:
		if !c.isOwn(ev.QueryID) { // the client shows its own prompts by itself
			tell(c.updater.prompt(ev))
		}
	case runnerscripts.TypeEnvironmentReady:
		if info, ok := payload[runnerscripts.EnvironmentInfo](c.updater, ev); ok {
			c.paths.found(info.Workspace)
		}
	}
	tell(c.updater.update(ev))
	tell(c.choices.update())
	if ev.Type.EndsQuery() {
		c.delivered(ev.QueryID)
	}
	return err
}

// isOwn reports whether the client has sent the prompt of a query.
func (c *conversation) isOwn(query string) bool {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.own[query] != nil
}

// delivered notes that the client has the last event of a query.
func (c *conversation) delivered(query string) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if delivered := c.own[query]; delivered != nil {
		close(delivered)
		delete(c.own, query)
	}
}

// forget removes the session from the store if nothing was said in it and nobody has it open.
func (c *conversation) forget(ctx context.Context) error {
	st := c.server.cfg.Host.Store()
	record, err := st.Load(ctx, string(c.id))
	if err != nil || record.LastSeq > 0 {
		return ignoreMissing(err)
	}
	unlock, err := st.Lock(ctx, string(c.id))
	if err != nil {
		return nil // another client has opened it
	}
	defer func() { _ = unlock() }()                                                 // the session is gone
	if record, err = st.Load(ctx, string(c.id)); err != nil || record.LastSeq > 0 { // it was opened meanwhile
		return ignoreMissing(err)
	}
	return ignoreMissing(st.Delete(ctx, string(c.id)))
}
