package agentmcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Limits of the tools, in characters and events.
const (
	maxPrompt = 100_000
	maxResult = 50_000
)

// family is an agent and the sessions that it has started.
type family struct {
	owner  *Server
	of     environment.Delegator
	parent string // the ID of the agent's session
	server *mcp.Server
	http   http.Handler
	unload func(id string) error // closes a session, whatever the caller's context

	mu         sync.Mutex
	hosts      []string // that the agent may reach now
	closed     bool
	interrupts int // calls of Interrupt
	starting   int // sessions that are being opened
	live       map[string]*child
}

// child is a session that is open.
type child struct {
	session *session.AgentSession
	agent   string
	turn    *session.Turn // the last one; nil for none
}

var (
	errClosed = errors.New("the agent that started it has ended")
	errOther  = errors.New("there is no such session; list_agent_sessions has those that you have started")
)

func (s *Server) newFamily(ctx context.Context, of environment.Delegator, parent string) (*family, error) {
	if s.host.Load() == nil {
		return nil, errors.New("there is no host for the sessions of other agents")
	}
	f := &family{owner: s, of: of, parent: parent, hosts: of.Config.Sandbox.AllowHosts, live: map[string]*child{}}
	outlives := context.WithoutCancel(ctx)
	f.unload = func(id string) error { return f.host().Unload(outlives, id) }
	f.server = f.newServer()
	f.http = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return f.server }, &mcp.StreamableHTTPOptions{Stateless: true})
	return f, nil
}

func (f *family) host() Host { return *f.owner.host.Load() }

// SetAllowHosts replaces the hosts that agents may reach which are started from now on.
func (f *family) SetAllowHosts(hosts []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts = append([]string{}, hosts...)
}

// config returns the configuration of the agent's environment, as it is now.
func (f *family) config() environment.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	cfg := f.of.Config
	cfg.Sandbox.AllowHosts = f.hosts
	return cfg
}

// Interrupt stops the queries of all sessions, also of those that are being opened; see prompt.
func (f *family) Interrupt(ctx context.Context) {
	f.mu.Lock()
	f.interrupts++
	f.mu.Unlock()
	for _, c := range f.opened() {
		for _, turn := range c.session.Turns() {
			_ = turn.Interrupt(ctx) // it fails if the session has ended
		}
	}
}

// interrupted returns the number of interrupts, for prompt.
func (f *family) interrupted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.interrupts
}

// opened returns the sessions that are open.
func (f *family) opened() []*child {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked()
	var all []*child
	for _, c := range f.live {
		all = append(all, c)
	}
	return all
}

// forgetLocked forgets sessions that the host has closed, as idle for example. The caller holds f.mu.
func (f *family) forgetLocked() {
	for id, c := range f.live {
		if f.host().Opened(id) != c.session {
			delete(f.live, id)
		}
	}
}

// Close ends the sandboxes of all sessions, which stay in the store.
func (f *family) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	var closing sync.WaitGroup
	all := f.opened()
	errs := make([]error, len(all))
	for i, c := range all {
		closing.Go(func() { errs[i] = f.unload(c.session.ID()) })
	}
	closing.Wait()
	return errors.Join(errs...)
}

// reserve counts a session that is about to be opened, until done is called.
func (f *family) reserve() (done func(), err error) {
	most := f.of.Config.Delegation.Max
	if most == 0 {
		most = environment.DefaultMaxDelegates
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked()
	if f.closed {
		return nil, errClosed
	}
	if len(f.live)+f.starting >= most {
		return nil, fmt.Errorf("%d of your sessions have a sandbox, and no more may at once; stop one that has done its work with stop_agent_session, which keeps its result", most)
	}
	f.starting++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.starting--
	}), nil
}

// add adds a session that was opened.
func (f *family) add(s *session.AgentSession, name string) (*child, error) {
	c := &child{session: s, agent: name}
	f.mu.Lock()
	f.live[s.ID()] = c
	closed := f.closed
	f.mu.Unlock()
	if closed { // Close may not have seen it
		return nil, errors.Join(errClosed, f.unload(s.ID()))
	}
	return c, nil
}

// checkPrompt returns an error for a prompt that no agent gets.
func checkPrompt(prompt string) error {
	switch n := utf8.RuneCountInString(prompt); {
	case n == 0:
		return errors.New("the prompt is empty; say what the agent should do")
	case n > maxPrompt:
		return fmt.Errorf("the prompt has %d characters, and may have %d; shorten it", n, maxPrompt)
	}
	return nil
}

// start starts a new session with a prompt.
func (f *family) start(ctx context.Context, name, prompt string) (*child, error) {
	if err := checkPrompt(prompt); err != nil {
		return nil, err
	}
	cfg, err := f.configure(name)
	if err != nil {
		return nil, err
	}
	before := f.interrupted()
	done, err := f.reserve()
	if err != nil {
		return nil, err
	}
	defer done()
	s, err := f.host().Create(ctx, session.Config{Environment: cfg, Metadata: f.metadata(ctx, name)})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c, err := f.add(s, name)
	if err != nil {
		return nil, err
	}
	f.owner.cfg.Logger.Info("agent started by another", "session", s.ID(), "by", f.parent, "agent", name)
	return c, f.prompt(ctx, c, prompt, before)
}

// resume sends a prompt to a session.
func (f *family) resume(ctx context.Context, id, prompt string) (*child, error) {
	if err := checkPrompt(prompt); err != nil {
		return nil, err
	}
	before := f.interrupted()
	c, name, err := f.find(ctx, id)
	if err == nil && c == nil {
		c, err = f.reopen(ctx, id, name)
	}
	if err != nil {
		return nil, err
	}
	return c, f.prompt(ctx, c, prompt, before)
}

func (f *family) reopen(ctx context.Context, id, name string) (*child, error) {
	done, err := f.reserve()
	if err != nil {
		return nil, err
	}
	defer done()
	s, err := f.open(ctx, id, name)
	if err != nil {
		return nil, err
	}
	return f.add(s, name)
}

// prompt sends a prompt to a session. before is the number of interrupts when the agent called: a later Interrupt may have come
// too early to see the query, which is interrupted then.
func (f *family) prompt(ctx context.Context, c *child, prompt string, before int) error {
	turn, err := c.session.Prompt(ctx, prompt)
	if err != nil {
		return err
	}
	f.mu.Lock()
	c.turn = turn
	late := f.interrupts != before
	f.mu.Unlock()
	if late {
		_ = turn.Interrupt(context.WithoutCancel(ctx)) // it fails if the session has ended
	}
	return nil
}

// find returns a session of the family, and the name of its agent. The child is nil if it is not open.
func (f *family) find(ctx context.Context, id string) (*child, string, error) {
	f.mu.Lock()
	f.forgetLocked()
	c := f.live[id]
	f.mu.Unlock()
	if c != nil {
		return c, c.agent, nil
	}
	rec, err := f.host().Store().Load(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && rec.Metadata[metaParent] != f.parent {
		return nil, "", errOther
	}
	return nil, rec.Metadata[metaAgent], err
}

// records returns the stored sessions of the family, the latest first.
func (f *family) records(ctx context.Context) ([]store.Record, error) {
	var all []store.Record
	for rec, err := range f.host().List(ctx, store.Filter{Metadata: map[string]string{metaParent: f.parent}}) {
		if errors.Is(err, store.ErrCorrupt) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, rec)
	}
	return all, nil
}

// stop ends the query and the sandbox of a session, which stays in the store.
func (f *family) stop(ctx context.Context, id string) error {
	c, _, err := f.find(ctx, id)
	if err != nil || c == nil {
		return err
	}
	return f.unload(id)
}

// removeAll removes all sessions of the family.
func (f *family) removeAll(ctx context.Context) (removed int, err error) {
	all, err := f.records(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, rec := range all {
		if err := f.host().Destroy(ctx, rec.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
			errs = append(errs, fmt.Errorf("%s: %w", rec.ID, err))
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}

// await waits until the last query of a session has ended, for at most d. It reports each tool call to progress.
func (f *family) await(ctx context.Context, c *child, d time.Duration, progress func(string)) {
	f.mu.Lock()
	turn := c.turn
	f.mu.Unlock()
	if turn == nil || d <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for ev, err := range turn.Events(ctx) {
		if err != nil {
			return
		}
		if line := lineOf(ev); line.Text != "" && slices.Contains(progressing, line.Kind) {
			progress(line.Text)
		}
	}
	_, _ = turn.Wait(ctx) // its state says how it ended
}
