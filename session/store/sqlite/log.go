package sqlite

import (
	"context"
	"database/sql"
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

// Append adds events to the log of a session.
func (s *Store) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	return s.write(ctx, "append", id, func(ctx context.Context, tx *sql.Tx) error {
		n, r, err := find(ctx, tx, id)
		if err != nil || len(events) == 0 {
			return err
		}
		for i, ev := range events {
			if want := r.LastSeq + uint64(i) + 1; ev.Seq != want {
				return fmt.Errorf("%w: event %d where %d comes next", store.ErrConflict, ev.Seq, want)
			}
		}
		add, err := tx.PrepareContext(ctx, "INSERT INTO event (session, seq, own, envelope, payload, sum) VALUES (?, ?, ?, ?, ?, ?)")
		if err != nil {
			return err
		}
		for _, ev := range events {
			if err = addEvent(ctx, add, n, id, ev); err != nil {
				break
			}
		}
		if err = errors.Join(err, add.Close()); err != nil {
			return err
		}
		last := events[len(events)-1]
		_, err = tx.ExecContext(ctx, "UPDATE session SET last_seq = ?, updated = ?, stored = "+nextStored+" WHERE n = ?",
			last.Seq, stamp(latest(last.Time, r.CreatedAt)), n)
		return err
	})
}

func addEvent(ctx context.Context, add *sql.Stmt, n int64, id string, ev runnerscripts.Event) error {
	seq, payload, own := ev.Seq, bytesOf(ev.Payload), ev.SessionID == id
	ev.Seq, ev.Payload = 0, nil
	if own {
		ev.SessionID = ""
	}
	envelope, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	_, err = add.ExecContext(ctx, n, seq, own, string(envelope), payload, checksum(seq, string(envelope), payload))
	return err
}

// readAhead is how many bytes of events a reader holds beside the next one.
const readAhead = 256 << 10

// Events returns the log of a session.
func (s *Store) Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		var n int64
		var last uint64
		err := s.r.QueryRowContext(ctx, "SELECT n, last_seq FROM session WHERE id = ?", id).Scan(&n, &last)
		if errors.Is(err, sql.ErrNoRows) {
			err = store.ErrNotFound
		}
		for next := max(from, 1); err == nil && next <= last; {
			var events []runnerscripts.Event
			// Finish the database read before yielding: the caller may take any time.
			events, err = readEvents(ctx, s.r, n, id, next, last)
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
	for size := 0; size < readAhead && rows.Next(); {
		var seq uint64
		var own bool
		var envelope string
		var payload []byte
		var sum uint32
		if err := rows.Scan(&seq, &own, &envelope, &payload, &sum); err != nil {
			return nil, err
		}
		want := from + uint64(len(events))
		var ev runnerscripts.Event
		if seq != want || sum != checksum(seq, envelope, payload) || json.Unmarshal([]byte(envelope), &ev) != nil {
			return nil, fmt.Errorf("%w: event %d", store.ErrCorrupt, want)
		}
		if ev.Seq, ev.Payload = seq, payload; own {
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
	if _, _, err := find(ctx, q, id); err != nil {
		return err
	}
	return fmt.Errorf("%w: event %d is missing", store.ErrCorrupt, seq)
}
