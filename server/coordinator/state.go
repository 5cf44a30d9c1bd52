package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// Times of the protocol.
const (
	pollTimeout    = 30 * time.Second
	heartbeatEvery = 60 * time.Second
	// staleAfter is how long a runner is online without a sign of life, and goneAfter how long it is registered.
	staleAfter, goneAfter = 120 * time.Second, 600 * time.Second
	// returnWithin is how long runners may take to be heard of after the coordinator was opened: they could not reach one that was
	// not there. Until goneAfter they keep their runs.
	returnWithin = 60 * time.Second
	// startWithin is how long a runner may take to say that it has started a run, before another one gets it.
	startWithin = 60 * time.Second
	// sendAgain is how long after a run or a stop was sent it is sent again, if the runner has not acted on it.
	sendAgain = 10 * time.Second
	// matchWithin is how long a run waits for a runner that meets its demands.
	matchWithin = 300 * time.Second
	// runningSilence and stoppingSilence are how long nothing may be heard of a run: no event, no report, no heartbeat that names it.
	runningSilence, stoppingSilence = 900 * time.Second, 120 * time.Second
	// checkEvery is how often these times are checked.
	checkEvery = 5 * time.Second
)

// Limits.
const (
	maxBody = 4 << 20 // bytes
	// maxRun is how many bytes a request for a run, or the parameters of a hook's answer, may have. The answer to a poll has the prompt
	// twice, and that of a hook up to four times as JSON in JSON; runners read 8 MiB.
	maxRun = 1 << 20
	// maxKept is how many bytes of a request a run keeps when it has ended, and of an executor its session. Lists have them.
	maxKept = 16 << 10
	// maxSessionError is how many bytes of an error a session has. Lists and streams have them for each session.
	maxSessionError = 2_000
	// maxReleases is how often a run may be claimed and not started.
	maxReleases = 10
	maxSessions = 10_000
	maxOwned    = 1_000 // sessions of a caller that is no admin
	maxActive   = 100   // runs of a caller that is no admin, which have not ended
	maxEvents   = 100_000
	maxRunners  = 1_000
	// keptRuns is how many ended runs of a session are kept.
	keptRuns = 100
)

// Config says what to coordinate.
type Config struct {
	// Dir is an existing folder for the database, which is SQLite. One coordinator uses it at a time.
	Dir string
	// Agents are the blueprints that runs may name, besides those of registered runners.
	Agents []coordapi.Agent
	// Logger receives diagnostics; nil discards them.
	Logger hclog.Logger
}

// Coordinator has sessions, runs and runners. Its methods may be called from several goroutines at once.
type Coordinator struct {
	agents map[string]coordapi.Agent
	log    hclog.Logger
	db     *db
	opened time.Time

	mu       sync.Mutex // serializes changes; also guards what follows
	sessions map[string]*session
	runs     map[string]*run
	active   map[string]*run // those of runs that have not ended
	runners  map[string]*runner
	last     uint64        // counts runs
	changed  chan struct{} // closed at the next change that clients may see
	work     chan struct{} // closed at the next change that may be work for a runner

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// session is a session as it is stored.
type session struct {
	coordapi.Session
	Result *coordapi.Result `json:"result,omitempty"`
	// Events counts those in the log. It is not stored, and neither is that an event was the last activity: each event would write
	// the session with its result and its callbacks.
	Events int `json:"-"`
	// Runner is the ID of the runner that has the session, or had it last, RunnerOwner the caller behind it, and RunnerDir its folder.
	Runner      string `json:"runner,omitempty"`
	RunnerOwner string `json:"runner_owner,omitempty"`
	RunnerDir   string `json:"runner_dir,omitempty"`
	// Tags are those that the start demanded.
	Tags []string `json:"tags,omitempty"`
	// Stop is the ID of the runner that must end the session, which is between runs, until it says that it has. A stop of a run is the
	// state of that run.
	Stop string `json:"stop,omitempty"`
	// Internal is set for the sessions of hooks, which are removed when they have ended.
	Internal bool `json:"internal,omitempty"`
	// Callbacks are the ended runs of children that the agent does not know yet.
	Callbacks []callback `json:"callbacks,omitempty"`
	// Stopped is set when a client stops the session, until one asks for another run: callbacks wait until then.
	Stopped bool `json:"stopped,omitempty"`

	stopSent time.Time
}

// run is a run as it is stored.
type run struct {
	coordapi.Run
	N     uint64 `json:"n"` // the order of creation
	Owner string `json:"owner,omitempty"`
	// Hook is the run of Hooks.OnRunStart for which this run waits, and HookOf the run that waits for this one.
	Hook, HookOf string `json:",omitempty"`
	// Internal is set for the runs of hooks, which have no hooks themselves.
	Internal bool `json:"internal,omitempty"`
	// Callbacks are those in the prompt. They return to the session if the run fails, or is stopped, before it has an event.
	Callbacks []callback `json:"callbacks,omitempty"`
	// Events is how many events the session had when the run started.
	Events int `json:"events,omitempty"`
	// Releases counts how often a runner has claimed the run and has not started it.
	Releases int `json:"releases,omitempty"`
	// Activity is when a runner was last heard of about this run. It is in memory only: each event changes it.
	Activity time.Time `json:"-"`

	sent time.Time // the run, or its stop
}

// runner is a runner as it is stored.
type runner struct {
	coordapi.Runner
	Owner string `json:"owner,omitempty"`

	stored time.Time // when LastHeartbeat was stored; zero after a restart
}

// Kinds of items and entries. The entries are the events that clients get.
const (
	kindSession = "session"
	kindRun     = "run"
	kindRunner  = "runner"

	kindCreated   = "session_created"
	kindUpdated   = "session_updated"
	kindDeleted   = "session_deleted"
	kindEvent     = "event"
	kindRunFailed = "run_failed"
)

// Open opens the coordinator of a folder. If another program has it, the error is [ErrInUse]. The caller must close it.
func Open(ctx context.Context, cfg Config) (*Coordinator, error) {
	c := &Coordinator{
		agents: make(map[string]coordapi.Agent), log: cfg.Logger,
		sessions: make(map[string]*session), runs: make(map[string]*run), active: make(map[string]*run), runners: make(map[string]*runner),
		changed: make(chan struct{}), work: make(chan struct{}), opened: time.Now().UTC(),
	}
	if c.log == nil {
		c.log = hclog.NewNullLogger()
	}
	for _, a := range cfg.Agents {
		if err := checkAgent(a); err != nil {
			return nil, fmt.Errorf("coordinator: %w", err)
		}
		if _, twice := c.agents[a.Name]; twice {
			return nil, fmt.Errorf("coordinator: there are two agents %q; keep one", a.Name)
		}
		c.agents[a.Name] = a
	}
	var err error
	if c.db, err = openDB(ctx, cfg.Dir); err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	if err := c.load(ctx); err != nil {
		return nil, fmt.Errorf("coordinator: %w; its database is in %s", errors.Join(err, c.db.close()), cfg.Dir)
	}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.done.Go(func() { c.watch(ctx) })
	return c, nil
}

// Close ends the coordinator; requests must have ended. Everything stays stored.
func (c *Coordinator) Close() error {
	c.cancel()
	c.done.Wait()
	return c.db.close()
}

// load reads what is stored. Runs that have not ended count as heard of now, and pending ones wait their full time again: no runner
// could claim them before.
func (c *Coordinator) load(ctx context.Context) error {
	for data, err := range c.db.items(ctx, kindSession) {
		s := new(session)
		if err := decoded(data, err, s); err != nil {
			return err
		}
		c.sessions[s.ID] = s
	}
	logged, err := c.db.logged(ctx)
	if err != nil {
		return err
	}
	for id, l := range logged {
		if s := c.sessions[id]; s != nil {
			s.Events, s.LastActivity = l.events, latest(s.LastActivity, l.last)
		}
	}
	for data, err := range c.db.items(ctx, kindRun) {
		r := new(run)
		if err := decoded(data, err, r); err != nil {
			return err
		}
		if !r.Status.Ended() {
			r.Activity, c.active[r.ID] = c.opened, r
			if r.Status == coordapi.RunPending {
				at := c.opened.Add(r.fullWait())
				r.TimeoutAt = &at
			}
		} else {
			r.Run, r.Callbacks = brief(r.Run), nil // an earlier version kept them
		}
		c.runs[r.ID], c.last = r, max(c.last, r.N)
	}
	for data, err := range c.db.items(ctx, kindRunner) {
		r := new(runner)
		if err := decoded(data, err, r); err != nil {
			return err
		}
		c.runners[r.ID] = r
	}
	return nil
}

func decoded(data []byte, err error, to any) error {
	if err != nil {
		return err
	}
	return json.Unmarshal(data, to)
}

// watch checks the times until ctx is done.
func (c *Coordinator) watch(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := c.change(ctx, c.expire); err != nil && ctx.Err() == nil {
				c.log.Error("the coordinator cannot store its state", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// tx is one change. It works on copies, which are stored and then replace the originals, all or none.
type tx struct {
	c        *Coordinator
	ctx      context.Context //nolint:containedctx // a tx lives as long as one call of change
	now      time.Time
	sessions map[string]*session // nil values are removed
	runs     map[string]*run
	runners  map[string]*runner
	entries  []entry
	old      map[string]coordapi.Session // how clients saw the sessions
	quiet    bool                        // it is no work for a runner
}

// change makes one change, or none if do fails or it cannot be stored.
func (c *Coordinator) change(ctx context.Context, do func(*tx) error) error {
	ctx = context.WithoutCancel(ctx) // a client that goes away does not leave half a change
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &tx{
		c: c, ctx: ctx, now: time.Now().UTC(), sessions: make(map[string]*session), runs: make(map[string]*run),
		runners: make(map[string]*runner), old: make(map[string]coordapi.Session),
	}
	if err := do(t); err != nil {
		return err
	}
	var items []item
	items = append(items, itemsOf(kindSession, t.sessions)...)
	items = append(items, itemsOf(kindRun, t.runs)...)
	items = append(items, itemsOf(kindRunner, t.runners)...)
	t.announce()
	if len(items) == 0 && len(t.entries) == 0 {
		return nil
	}
	if err := c.db.commit(ctx, items, t.entries); err != nil {
		return err
	}
	apply(c.sessions, t.sessions)
	apply(c.runs, t.runs)
	apply(c.runners, t.runners)
	c.count(t.entries)
	for id, r := range t.runs {
		if r == nil || r.Status.Ended() {
			delete(c.active, id)
		} else {
			c.active[id] = r
		}
	}
	if len(t.sessions) > 0 || len(t.entries) > 0 {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	if !t.quiet {
		close(c.work)
		c.work = make(chan struct{})
	}
	return nil
}

// count counts the events among new entries. The caller holds c.mu. Readers have the sessions of before, so it replaces them.
func (c *Coordinator) count(entries []entry) {
	for _, e := range entries {
		if s := c.sessions[e.session]; s != nil && e.kind == kindEvent {
			now := *s
			now.Events, now.LastActivity = s.Events+1, latest(s.LastActivity, e.time)
			c.sessions[e.session] = &now
		}
	}
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func itemsOf[T any](kind string, changed map[string]*T) []item {
	var items []item
	for _, id := range slices.Sorted(maps.Keys(changed)) {
		it := item{kind: kind, id: id}
		if v := changed[id]; v != nil {
			it.data = v
		}
		items = append(items, it)
	}
	return items
}

func apply[T any](to, changed map[string]*T) {
	for id, v := range changed {
		if v == nil {
			delete(to, id)
		} else {
			to[id] = v
		}
	}
}

// copyOf returns the copy of a value that a change may modify; nil if there is none.
func copyOf[T any](changed, all map[string]*T, id string) *T {
	v, ok := changed[id]
	if !ok && all[id] != nil {
		c := *all[id]
		v = &c
		changed[id] = v
	}
	return v
}

func (t *tx) session(id string) *session {
	if s := t.c.sessions[id]; s != nil {
		t.old[id] = s.Session
	}
	return copyOf(t.sessions, t.c.sessions, id)
}
func (t *tx) run(id string) *run       { return copyOf(t.runs, t.c.runs, id) }
func (t *tx) runner(id string) *runner { return copyOf(t.runners, t.c.runners, id) }

// selectRuns returns the runs that have not ended and that selects selects, in the order of their creation, as they are in the change.
// They must not be modified.
func (t *tx) selectRuns(selects func(*run) bool) []*run {
	return t.among(t.c.active, func(r *run) bool { return !r.Status.Ended() && selects(r) })
}

// among is selectRuns for some of the runs, and those that the change adds.
func (t *tx) among(all map[string]*run, selects func(*run) bool) []*run {
	var list []*run
	for id, r := range all {
		if _, ok := t.runs[id]; !ok && selects(r) {
			list = append(list, r)
		}
	}
	for _, r := range t.runs {
		if r != nil && selects(r) {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *run) int { return cmp.Compare(a.N, b.N) })
	return list
}

// allRunners returns the runners as they are in the change, sorted by ID. They must not be modified.
func (t *tx) allRunners() []*runner {
	all := maps.Clone(t.c.runners)
	apply(all, t.runners)
	return sortedRunners(all)
}

func sortedRunners(all map[string]*runner) []*runner {
	return slices.SortedFunc(maps.Values(all), func(a, b *runner) int { return cmp.Compare(a.ID, b.ID) })
}

// announce adds entries for the sessions that clients see in another way now.
func (t *tx) announce() {
	for _, id := range slices.Sorted(maps.Keys(t.sessions)) {
		s := t.sessions[id]
		old, known := t.old[id]
		switch {
		case s == nil:
		case !known:
			t.entry(s, kindCreated, "", map[string]any{"session": s.Session})
		case seenAs(s.Session) != seenAs(old):
			t.entry(s, kindUpdated, "", map[string]any{"session": s.Session})
		}
	}
}

// seenAs returns a session without what changes with each event.
func seenAs(s coordapi.Session) coordapi.Session {
	s.LastActivity = time.Time{}
	return s
}

// entry adds an entry of a session.
func (t *tx) entry(s *session, kind, key string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		t.c.log.Error("an event cannot be written", "error", err)
		return
	}
	t.entries = append(t.entries, entry{kind: kind, session: s.ID, owner: s.Owner, runner: s.RunnerOwner, time: t.now, key: key, data: text})
}

// newID returns a random ID.
func newID(prefix string) string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// waitChange returns a channel that is closed at the next change that clients may see, and waitWork one for runners.
func (c *Coordinator) waitChange() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *Coordinator) waitWork() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.work
}
