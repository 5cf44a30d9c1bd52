package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// prompted says where a kept sandbox stores the events of a query. It does not hold
// the prompts.
type prompted struct {
	Time    time.Time `json:"time"`
	QueryID string    `json:"query_id"`
	Process string    `json:"process"` // the durable command that has the prompt
	Input   string    `json:"input"`   // where its feeds connect
	Offset  int64     `json:"offset"`  // in its standard output
	Seen    bool      `json:"seen,omitempty"`
}

// FollowQuery returns the events of the query that runs in the sandbox, of any program's
// prompt, from its beginning to its end; if none runs, the events of the last one.
// So the query of a program that was killed is not lost: it goes on
// in a sandbox that is kept. It can be interrupted, and its permission requests can be
// answered, as those of a query of this environment's own. Those that were settled
// before are [ErrNotPending], and Config.OnPermission is not called for them. Where that
// is nil, requests are left to the program that began the query.
//
// The sequence ends as that of [Environment.ExecuteQuery]. When ctx is done, the
// loop is left or the environment is closed, the query goes on. Where none is
// known, because none was begun since the sandbox was made or the sandbox has no
// durable commands, the error is [ErrNoQuery].
func (e *Environment) FollowQuery(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		r := &queryRun{env: e, yield: yield, began: now(), watching: true}
		if err := r.watch(ctx); err != nil && !r.left {
			yield(runnerscripts.Event{}, err)
		}
	}
}

func (r *queryRun) watch(ctx context.Context) error {
	e := r.env
	ctx, leave, err := e.enterAlone(ctx)
	if err != nil {
		return err
	}
	defer leave()
	last, err := e.lastPrompt(ctx)
	if err != nil {
		return err
	}
	settled, _, err := e.settled(ctx, last)
	if err != nil {
		return fmt.Errorf("follow the query: %w", err)
	}
	p, err := e.reattach(ctx, last)
	if err != nil {
		return fmt.Errorf("follow the query: %w", err)
	}
	r.query.ID, r.seen = last.QueryID, last.Seen
	e.mu.Lock()
	own := e.agent
	e.agent = p
	e.mu.Unlock()
	r.begin(settled)
	ctx, withdraw := context.WithCancel(ctx)
	err = r.follow(ctx, p)
	cause := context.Cause(ctx)
	withdraw()
	r.asks.Wait()
	e.setQuery(nil)
	if r.ended && !r.seen {
		r.noteActivity()
	}
	p.leave()
	e.forget(p)
	e.mu.Lock()
	e.agent = own
	e.mu.Unlock()
	if err != nil && !r.ended && cause == nil {
		err = r.fail(ctx, err)
	}
	return err
}

// rejoin returns the agent that an earlier program has left in the sandbox, if it
// may still take a prompt; else nil. It looks once.
func (e *Environment) rejoin(ctx context.Context) (*process, error) {
	e.mu.Lock()
	looked := e.joined || !e.owner.placed
	e.joined = true
	e.mu.Unlock()
	if looked || !e.durable(runnerscripts.ExecuteQuery) {
		return nil, nil
	}
	last, err := e.lastPrompt(ctx)
	if errors.Is(err, ErrNoQuery) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := e.reattach(ctx, last)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		return nil, nil // its output is gone, so it is, too
	case err != nil:
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.agent = p
	return p, nil
}

// reattach returns the process that has or had a prompt, with its output from
// there on. The caller closes it.
func (e *Environment) reattach(ctx context.Context, at prompted) (*process, error) {
	args, err := e.command(ctx, runnerscripts.ExecuteQuery)
	if err != nil {
		return nil, err
	}
	// As in start: ctx bounds this only.
	life, forget := context.WithCancel(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, forget)
	defer starting()
	proc, err := primitives.Reattach(life, e.prim, at.Process, primitives.Offset{Stdout: at.Offset})
	if err != nil {
		forget()
		return nil, err
	}
	d := newDurable(ctx, proc)
	d.input = at.Input
	if d.feed, err = e.startFeed(life, args[0], at.Input); err != nil {
		d.leave()
		err = errors.Join(err, d.Close())
		forget()
		return nil, err
	}
	p := follow(ctx, runnerscripts.ExecuteQuery, d, e.maxLine, e.hide, forget)
	p.from, p.adopted = at.Offset, true
	if err := e.adopt(p); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// Unattended reports whether a query was begun in the sandbox whose end no program
// has seen: one that still runs, or has ended after its program was killed. Use
// [Environment.FollowQuery] for it.
func (e *Environment) Unattended(ctx context.Context) (bool, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	last, err := e.lastPrompt(ctx)
	if errors.Is(err, ErrNoQuery) {
		return false, nil
	}
	return err == nil && !last.Seen, err
}

// Working reports whether a query runs in the sandbox, of this program or another one.
func (e *Environment) Working(ctx context.Context) (bool, error) {
	ctx, leave, err := e.enterAlone(ctx)
	if errors.Is(err, ErrBusy) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer leave()
	return e.working(ctx)
}

// notePrompt writes down that a durable process is about to get a prompt.
func (e *Environment) notePrompt(ctx context.Context, p *process, id string) error {
	d, ok := p.proc.(*durableProcess)
	if !ok {
		return nil
	}
	return e.note(ctx, prompted{Time: now(), QueryID: id, Process: d.ID(), Input: d.input, Offset: p.at()})
}

// noteEnd writes down that a program has seen the end of a query.
func (e *Environment) noteEnd(ctx context.Context, p *process, id string) {
	if _, ok := p.proc.(*durableProcess); !ok {
		return
	}
	// If it fails, the query is shown once more.
	if err := e.note(ctx, prompted{Time: now(), QueryID: id, Seen: true}); err != nil {
		e.log.Debug("cannot write down that a query has ended", "error", err)
	}
}

func (e *Environment) note(ctx context.Context, p prompted) error {
	line, err := json.Marshal(p)
	if err != nil {
		return err
	}
	err = e.prim.WriteFile(ctx, path.Join(e.prim.Paths().App, queriesFile), bytes.NewReader(append(line, '\n')),
		primitives.WriteOptions{Mode: 0o600, Append: true})
	if err != nil {
		return fmt.Errorf("write down where the query's events are: %w", err)
	}
	return nil
}

// lastPrompt returns what is known of the latest query.
func (e *Environment) lastPrompt(ctx context.Context) (prompted, error) {
	all, err := e.prompts(ctx)
	if err != nil {
		return prompted{}, err
	}
	if len(all) == 0 {
		return prompted{}, ErrNoQuery
	}
	return all[len(all)-1], nil
}

// prompts returns what is known of the queries so far, in their order.
func (e *Environment) prompts(ctx context.Context) ([]prompted, error) {
	name := path.Join(e.prim.Paths().App, queriesFile)
	data, err := primitives.ReadFile(ctx, e.prim, name, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of queries: %w", err)
	}
	var all []prompted
	lines := runnerscripts.NewLineReader(bytes.NewReader(data), 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) || err == nil && lines.Unterminated() {
			return all, nil
		}
		var one prompted
		if err == nil {
			err = json.Unmarshal(line, &one)
		}
		if err == nil && (one.QueryID == "" || one.Process == "" && !one.Seen) {
			err = errors.New("it names no query")
		}
		if err != nil {
			return nil, fmt.Errorf("the list of the sandbox's queries is damaged: %w; delete %s in it", err, name)
		}
		if one.Seen {
			if n := len(all); n > 0 && all[n-1].QueryID == one.QueryID {
				all[n-1].Seen = true
			}
			continue
		}
		all = append(all, one)
	}
}

// maxSettled is how many bytes of memory the IDs of the requests of a query take.
const maxSettled = 16 << 20

// settled returns the permission requests of a query that were settled by now,
// according to what is kept of its events, and whether it has ended.
func (e *Environment) settled(ctx context.Context, at prompted) (settled map[string]bool, ended bool, err error) {
	proc, err := primitives.Reattach(ctx, e.prim, at.Process, primitives.Offset{Stdout: at.Offset, NoFollow: true})
	if err != nil {
		return nil, false, err
	}
	settled, ended, err = readSettled(proc.Stdout(), e.maxLine, at.QueryID)
	if err = errors.Join(err, proc.Close()); err != nil {
		return nil, false, fmt.Errorf("read what it has asked: %w", err)
	}
	return settled, ended, nil
}

// readSettled is settled for a stream of events whose last line may be incomplete.
func readSettled(r io.Reader, maxLine int, query string) (settled map[string]bool, ended bool, err error) {
	settled = make(map[string]bool) // by the requests there were
	lines := runnerscripts.NewLineReader(r, maxLine)
	size := 0
	note := func(id string, is bool) {
		if _, known := settled[id]; !known {
			size += 64 + len(id)
		}
		settled[id] = is
	}
	for size <= maxSettled {
		line, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF) || err == nil && lines.Unterminated():
			return settled, false, nil
		case err != nil:
			return nil, false, err
		}
		ev, err := runnerscripts.DecodeEvent(line)
		if err != nil {
			continue // the follower of the query gets it
		}
		switch ev.Type {
		case runnerscripts.TypePermissionRequest:
			if req, err := runnerscripts.Payload[request](ev); err == nil {
				note(req.ID, false)
			}
		case runnerscripts.TypePermissionResolved:
			if done, err := runnerscripts.Payload[request](ev); err == nil {
				note(done.ID, true)
			}
		case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
			if ev.QueryID == query {
				for id := range settled {
					settled[id] = true
				}
				return settled, true, nil
			}
		}
	}
	return nil, false, fmt.Errorf("%w: the IDs of its permission requests take more than %d MiB", primitives.ErrLimit, maxSettled>>20)
}
