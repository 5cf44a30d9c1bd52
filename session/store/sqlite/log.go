package sqlite

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the checksum of an event.
func checksum(seq uint64, envelope string, payload []byte) uint32 {
	sum := crc32.Update(0, castagnoli, binary.BigEndian.AppendUint64(nil, seq))
	sum = crc32.Update(sum, castagnoli, []byte(envelope))
	return crc32.Update(sum, castagnoli, payload)
}

// readAhead is how many bytes of events a reader holds beside the next one.
const readAhead = 256 << 10

// Events returns the log of a session.
func (s *Store) Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		h, err := headOf(ctx, s.r, id)
		for next := max(from, 1); err == nil && next <= h.last; {
			var events []runnerscripts.Event
			// Finish the database read before yielding: the caller may take any time.
			events, err = readEvents(ctx, s.r, h.n, id, next, h.last)
			for i := 0; i < len(events) && err == nil; i++ {
				if err = ctx.Err(); err == nil && !yield(events[i], nil) {
					return
				}
			}
			next += uint64(len(events))
		}
		if err != nil {
			yield(runnerscripts.Event{}, s.failed(ctx, "events", id, err))
		}
	}
}

// readEvents returns at least one event, starting at from.
func readEvents(
	ctx context.Context, q querier, n int64, id string, from, last uint64,
) (events []runnerscripts.Event, err error) {
	rows, err := q.QueryContext(ctx,
		"SELECT seq, own, envelope, payload, sum FROM event WHERE session = ? AND seq BETWEEN ? AND ? ORDER BY seq", n, from, last)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var seq, own uint64
	var envelope string
	var payload []byte
	var sum uint32
	columns := []any{integer(&seq), integer(&own), text(&envelope), raw(&payload), integer(&sum)}
	for size := 0; size < readAhead && rows.Next(); {
		want := from + uint64(len(events))
		err := rows.Scan(columns...)
		if err != nil && !errors.Is(err, errColumn) {
			return nil, err
		}
		var ev runnerscripts.Event
		if err != nil || seq != want || sum != checksum(seq, envelope, payload) || json.Unmarshal([]byte(envelope), &ev) != nil {
			return nil, fmt.Errorf("%w: event %d", store.ErrCorrupt, want)
		}
		if ev.Seq, ev.Payload = seq, payload; own != 0 {
			ev.SessionID = id
		}
		events = append(events, ev)
		size += len(envelope) + len(payload)
	}
	if err := rows.Err(); err != nil || len(events) > 0 {
		return events, err
	}
	return nil, gone(ctx, q, id, from)
}

// gone returns the error for a missing event.
func gone(ctx context.Context, q querier, id string, seq uint64) error {
	if _, err := headOf(ctx, q, id); err != nil {
		return err
	}
	return fmt.Errorf("%w: event %d is missing", store.ErrCorrupt, seq)
}
