package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// File is the file in the folder App in which a kept sandbox lists its prompts, one per line.
const File = "queries.jsonl"

// maxSize limits what is read of it: 16 MiB.
const maxSize = 16 << 20

// queryRecord says where a kept sandbox stores the events of a query. It does not hold the prompts.
type queryRecord struct {
	Time    time.Time `json:"time"`
	QueryID string    `json:"query_id"`
	Process string    `json:"process"` // the durable command that has the prompt
	Input   string    `json:"input"`   // where its feeds connect
	// Offset is where the query begins in the standard output of the process: what follows and
	// belongs to no other query is the query's.
	Offset int64 `json:"offset"`
	// Index is the Index of the last event before Offset, from a process that ended before it
	// started the query.
	Index int  `json:"index,omitempty"`
	Seen  bool `json:"seen,omitempty"`
}

// notePrompt records that a durable process is about to get a prompt.
func (r *run) notePrompt(ctx context.Context, p *script.Process) error {
	id, input, ok := p.Durable()
	if !ok {
		return nil
	}
	return r.q.note(ctx, queryRecord{
		Time: now(), QueryID: r.query.ID, Process: id, Input: input, Offset: p.Taken, Index: r.index,
	})
}

// noteSeen records in the sandbox that a program has seen the end of a query.
func (q *Queries) noteSeen(ctx context.Context, p *script.Process, id string) {
	if _, _, ok := p.Durable(); !ok {
		return
	}
	// If it fails, the query counts as unattended once more.
	if err := q.note(ctx, queryRecord{Time: now(), QueryID: id, Seen: true}); err != nil {
		q.events.Log.Debug("cannot write down that a query has ended", "error", err)
	}
}

func (q *Queries) note(ctx context.Context, p queryRecord) error {
	line, err := json.Marshal(p)
	if err != nil {
		return err
	}
	err = q.Scripts.Sandbox.WriteFile(ctx, path.Join(q.Scripts.Sandbox.Paths().App, File), bytes.NewReader(append(line, '\n')),
		primitives.WriteOptions{Mode: 0o600, Append: true})
	if err != nil {
		return fmt.Errorf("write down where the query's events are: %w", err)
	}
	return nil
}

// lastPrompt returns the record of the latest query.
func (q *Queries) lastPrompt(ctx context.Context) (queryRecord, error) {
	all, err := q.prompts(ctx)
	if err != nil {
		return queryRecord{}, err
	}
	if len(all) == 0 {
		return queryRecord{}, ErrNone
	}
	return all[len(all)-1], nil
}

// prompts returns the records of all queries, oldest first.
func (q *Queries) prompts(ctx context.Context) ([]queryRecord, error) {
	name := path.Join(q.Scripts.Sandbox.Paths().App, File)
	data, err := primitives.ReadFile(ctx, q.Scripts.Sandbox, name, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of queries: %w", err)
	}
	return readPrompts(data, name)
}

// readPrompts is prompts for the content of the file.
func readPrompts(data []byte, name string) ([]queryRecord, error) {
	var all []queryRecord
	lines := runnerscripts.NewLineReader(bytes.NewReader(data), 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) || err == nil && lines.Unterminated() {
			return all, nil
		}
		var one queryRecord
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

// maxSettled limits the bytes of memory that the IDs of the requests of a query take.
const maxSettled = 16 << 20

// progress says how far a query was when its output was read.
type progress struct {
	// settled has its permission requests; true for those that were settled.
	settled map[string]bool
	// waiting are the events of the query's requests that were not settled, by ID: as many as may
	// wait at once.
	waiting map[string]runnerscripts.Event
	started bool
	ended   bool
	running string // the query that runs; empty if none does
	// end is where the query ends in the output of its process, or where the output ends if the
	// query has not ended.
	end int64
}

// progressOf returns how far a query is, according to the stored events.
func (q *Queries) progressOf(ctx context.Context, at queryRecord) (progress, error) {
	proc, err := primitives.Reattach(ctx, q.Scripts.Sandbox, at.Process, primitives.Offset{Stdout: at.Offset, NoFollow: true})
	if err != nil {
		return progress{}, err
	}
	far, err := readProgress(proc.Stdout(), q.Scripts.MaxLine, at.QueryID)
	far.end += at.Offset
	if err = errors.Join(err, proc.Close()); err != nil {
		return progress{}, fmt.Errorf("read how far it is: %w", err)
	}
	return far, nil
}

// readProgress is progressOf for a stream of events whose last line may be incomplete.
func readProgress(r io.Reader, maxLine int, query string) (progress, error) {
	far := progress{settled: make(map[string]bool), waiting: make(map[string]runnerscripts.Event)}
	lines := runnerscripts.NewLineReader(r, maxLine)
	size, held := 0, 0
	note := func(id string, is bool) {
		if _, known := far.settled[id]; !known {
			size += 64 + len(id)
		}
		far.settled[id] = is
		held -= len(far.waiting[id].Payload)
		delete(far.waiting, id)
	}
	for size <= maxSettled {
		line, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF) || err == nil && lines.Unterminated():
			return far, nil
		case err != nil:
			return progress{}, err
		}
		far.end = lines.Offset()
		ev, err := runnerscripts.DecodeEvent(line)
		if err != nil {
			continue // the query's follower reports it
		}
		switch ev.Type {
		case runnerscripts.TypePermissionRequest:
			if req, err := runnerscripts.Payload[request](ev); err == nil {
				note(req.ID, false)
				if len(far.waiting) < maxOpen && held+len(ev.Payload) <= MaxOpenBytes {
					far.waiting[req.ID] = ev
					held += len(ev.Payload)
				}
			}
		case runnerscripts.TypePermissionResolved:
			if done, err := runnerscripts.Payload[request](ev); err == nil {
				note(done.ID, true)
			}
		case runnerscripts.TypeQueryStarted:
			far.running = ev.QueryID
			far.started = far.started || ev.QueryID == query
		case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
			far.running = ""
			if ev.QueryID == query {
				for id := range far.settled {
					far.settled[id] = true
				}
				far.ended = true
				return far, nil
			}
		}
	}
	return progress{}, fmt.Errorf("%w: the IDs of its permission requests take more than %d MiB", primitives.ErrLimit, maxSettled>>20)
}
