package opencode

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// conversation is a session of OpenCode. It has one server at a time, which stays between
// prompts and is restarted after a crash.
type conversation struct {
	session  runnerscripts.Session
	profile  runnerscripts.Profile
	guard    agent.Guard
	raw      bool
	out      agent.Sink
	patience time.Duration
	silence  time.Duration
	retries  int

	starting sync.Mutex // held while a server is started
	life     agent.Life

	permissions agent.Permissions[question]

	jobs sync.WaitGroup // started by background

	talking   sync.Mutex // held while events are translated; lock it before mu
	translate *translator
	deferred  map[string][]event // events of sessions whose tool call is unknown

	mu          sync.Mutex
	server      *server
	id          string // the program's ID of the session
	over        bool   // no server may be started any more
	initialized bool
	early       map[string]question // questions whose tool calls are unknown
	rules       ruleset             // actions that are allowed without asking the user
	query       *query
	aborts      []chan struct{} // closed when the program has processed them
	model       string          // empty: the program's default
	mode        string
	offer       offer
}

// Prompt runs one query to its end.
func (c *conversation) Prompt(ctx context.Context, _, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	now := time.Now()
	q := newQuery(newID("msg", now))
	c.mu.Lock()
	c.query = q
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.query = nil
		c.mu.Unlock()
	}()
	// From here on an interrupt reaches the query, even while the server restarts.
	s, err := c.ensureServer(ctx)
	if err != nil {
		return runnerscripts.QueryCompleted{}, err
	}
	if err := c.checkAttachments(attachments); err != nil {
		return runnerscripts.QueryCompleted{}, err
	}
	c.reportServers(ctx, s)
	err = c.work(ctx, s, q, c.begin(q.id, text, attachments, now))
	c.withdrawAll()
	c.reportLog(s)
	done := c.completed()
	switch {
	case err == nil:
		c.mu.Lock()
		defer c.mu.Unlock()
		done.StopReason, err = q.outcome()
		return done, err
	case ctx.Err() != nil:
		s.kill()
		return done, context.Cause(ctx)
	}
	if refused, ok := errors.AsType[*statusError](err); ok {
		return done, agent.FailedQuery("OpenCode did not take the prompt: %v", refused)
	}
	s.kill()
	return done, agent.Failed("send the prompt again, which resumes the conversation: OpenCode crashed: %s", s.crash())
}

// work sends the prompt and waits until all of its events are reported.
func (c *conversation) work(ctx context.Context, s *server, q *query, p prompt) error {
	sending, cancel := context.WithCancel(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	sent := make(chan error, 1)
	sender.Go(func() {
		c.aborted(sending)
		sent <- s.post(sending, "/session/"+c.sessionID()+p.path, p.body, nil)
	})
	for {
		select {
		case err := <-sent:
			if err != nil {
				return err
			}
			sent = nil // the request of a slash command returns only at the end of the query
		case <-q.done:
			if !c.accepted(q) {
				return nil
			}
			return c.catchUp(ctx, s, q)
		case <-s.eventsDone:
			return errors.New("the server has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// accepted reports whether the program has the query's message.
func (c *conversation) accepted(q *query) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return q.accepted
}

func (c *conversation) sessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// completed returns the result of a query without its outcome.
func (c *conversation) completed() runnerscripts.QueryCompleted {
	c.talking.Lock()
	defer c.talking.Unlock()
	return runnerscripts.QueryCompleted{Usage: c.translate.spent}
}

// catchUp reads the messages of the query and reports what the events left out: events may arrive
// out of order, and the last ones may not have arrived yet.
func (c *conversation) catchUp(ctx context.Context, s *server, q *query) error {
	messages, err := s.turn(ctx, c.sessionID(), q.id)
	if err != nil {
		return err
	}
	since := messages[0].Info.Time.Created
	c.translateMessages(messages)
	c.mu.Lock()
	for _, m := range messages {
		if m.Info.Role == roleAssistant {
			q.answer(m.Info)
		}
	}
	c.mu.Unlock()
	seen := map[string]bool{}
	for ids := subagentSessions(messages); len(ids) > 0; ids = ids[1:] {
		if seen[ids[0]] {
			continue
		}
		seen[ids[0]] = true
		work, err := s.messages(ctx, ids[0], 0)
		if err != nil {
			return err
		}
		work = sinceTime(work, since)
		c.translateMessages(work)
		ids = append(ids, subagentSessions(work)...)
	}
	return nil
}

// translateMessages translates complete messages, so that no event is missing.
func (c *conversation) translateMessages(messages []message) {
	c.talking.Lock()
	defer c.talking.Unlock()
	clear(c.deferred)
	for _, m := range messages {
		c.translate.message(m)
	}
}

// Interrupt stops the running query. If the program does not work on the prompt yet, the
// interrupt is sent when it does.
func (c *conversation) Interrupt(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupt(ctx, c.query)
	return nil
}

// interrupt stops a query, if it is not nil and still running. The caller holds c.mu.
func (c *conversation) interrupt(ctx context.Context, q *query) {
	if q == nil || q.finished || q != c.query {
		return
	}
	q.cancelled = true
	if q.busy {
		c.abort(ctx)
	} else {
		q.interrupt = true
	}
}

// abort asks the program to stop, without waiting for it. The caller holds c.mu, so that the
// query's state and the pending abort change together.
func (c *conversation) abort(ctx context.Context) {
	id, done := c.id, make(chan struct{})
	if c.backgroundLocked(ctx, func(ctx context.Context, s *server) error {
		defer close(done)
		return s.abort(ctx, id)
	}) {
		c.aborts = append(c.aborts, done)
	}
}

// aborted waits until the program has processed the aborts of an earlier query, which would
// stop the next one.
func (c *conversation) aborted(ctx context.Context) {
	c.mu.Lock()
	aborts := c.aborts
	c.aborts = nil
	c.mu.Unlock()
	for _, done := range aborts {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}

// background sends a request to the server in the background. Close waits for it.
func (c *conversation) background(ctx context.Context, do func(context.Context, *server) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.backgroundLocked(ctx, do)
}

// backgroundLocked is like background, but the caller holds c.mu. It returns false if the
// conversation is over.
func (c *conversation) backgroundLocked(ctx context.Context, do func(context.Context, *server) error) bool {
	if c.over {
		return false
	}
	s := c.server
	c.jobs.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		if err := do(ctx, s); err != nil {
			c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
				Level: "debug", Message: err.Error(), // the end of the query reports the effect
			})
		}
	})
	return true
}

// SetMode changes the permission mode.
func (c *conversation) SetMode(ctx context.Context, mode string) error {
	if _, err := c.ensureServer(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	err := c.offer.checkMode(mode)
	changed := err == nil && mode != c.mode
	if changed {
		c.mode = mode
	}
	c.mu.Unlock()
	if changed {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeModeUpdate, runnerscripts.ModeUpdate{CurrentModeID: mode})
	}
	return err
}

// SetModel changes the model.
func (c *conversation) SetModel(ctx context.Context, model string) error {
	if _, err := c.ensureServer(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	err := c.offer.checkModel(model)
	if err == nil {
		c.model = model
	}
	c.mu.Unlock()
	if err == nil {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeOptionsChanged, runnerscripts.OptionsChanged{Model: model})
	}
	return err
}

// preventStarts prevents further starts and returns the last server.
func (c *conversation) preventStarts() *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.server
}

// Close ends the server gracefully.
func (c *conversation) Close() error {
	c.life.Close(func() {
		c.preventStarts().close()
		c.jobs.Wait()
		c.withdrawAll()
		_ = os.Remove(addressFile(c.session)) // otherwise the next reader dials a dead server
	})
	return nil
}
