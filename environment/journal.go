package environment

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

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

// readSettled is settled for events, the last of which may be half a line.
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
			continue // whoever follows the query is told
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
