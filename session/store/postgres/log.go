package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// readAhead is how many bytes of events a reader holds beside the next one, and readRows how many
	// events.
	readAhead = 256 << 10
	readRows  = 1000
)

// rows are events as they are stored, column by column.
type rows struct {
	seqs      []int64
	own       []bool
	envelopes [][]byte
	payloads  [][]byte
}

func encode(id string, events []runnerscripts.Event) (r rows, err error) {
	for _, ev := range events {
		own := ev.SessionID == id
		r.seqs, r.own, r.payloads = append(r.seqs, int64(ev.Seq)), append(r.own, own), append(r.payloads, ev.Payload)
		ev.Seq, ev.Payload = 0, nil
		if own {
			ev.SessionID = ""
		}
		envelope, err := json.Marshal(ev)
		if err != nil {
			return rows{}, err
		}
		r.envelopes = append(r.envelopes, envelope)
	}
	return r, nil
}

// Append adds events to the log of a session.
func (s *Store) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	r, err := encode(id, events)
	if err != nil {
		return &store.Error{Op: "append", ID: id, Err: err}
	}
	again := false // an earlier attempt may have been successful
	return s.patiently(ctx, "append", id, func(ctx context.Context) error {
		err := s.once(ctx, s.pool, answerTime, func(ctx context.Context, tx pgx.Tx) error {
			h, err := headOf(ctx, tx, id, forChange)
			if err == nil {
				err = s.fenced(ctx, tx, id, h.n)
			}
			if err != nil || len(events) == 0 {
				return err
			}
			if again {
				if has, err := r.storedIn(ctx, tx, h); has || err != nil {
					return err
				}
			}
			return r.append(ctx, tx, h, events[len(events)-1].Time)
		})
		if u, ok := errors.AsType[uncertain](err); ok {
			again, err = true, u.error
		}
		return err
	})
}

// append adds the rows to a log. at is the time of the last event.
func (r rows) append(ctx context.Context, tx pgx.Tx, h head, at time.Time) error {
	for i, seq := range r.seqs {
		if want := int64(h.last) + int64(i) + 1; seq != want {
			return fmt.Errorf("%w: event %d where %d comes next", store.ErrConflict, seq, want)
		}
	}
	created, err := time.Parse(time.RFC3339Nano, h.created)
	if err != nil {
		return fmt.Errorf("%w: the time of its creation", store.ErrCorrupt)
	}
	var b pgx.Batch // one way to the database and back
	b.Queue(`INSERT INTO event (session, seq, own, envelope, payload)
		SELECT $1, * FROM unnest($2::bigint[], $3::boolean[], $4::bytea[], $5::bytea[])`, h.n, r.seqs, r.own, r.envelopes, r.payloads)
	b.Queue("UPDATE session SET last_seq = $2, updated = $3, stored = nextval('changes') WHERE n = $1",
		h.n, r.seqs[len(r.seqs)-1], stamp(latest(at, created)))
	return tx.SendBatch(ctx, &b).Close()
}

// storedIn reports whether the log ends with these very rows.
func (r rows) storedIn(ctx context.Context, tx pgx.Tx, h head) (bool, error) {
	if last := r.seqs[len(r.seqs)-1]; last != int64(h.last) {
		return false, nil
	}
	found, err := tx.Query(ctx, "SELECT envelope, payload FROM event WHERE session = $1 AND seq >= $2 ORDER BY seq", h.n, r.seqs[0])
	if err != nil {
		return false, err
	}
	defer found.Close()
	same := 0
	for found.Next() {
		var envelope, payload []byte
		if err := found.Scan(&envelope, &payload); err != nil {
			return false, err
		}
		if same < len(r.seqs) && bytes.Equal(envelope, r.envelopes[same]) && bytes.Equal(payload, r.payloads[same]) {
			same++
		}
	}
	return same == len(r.seqs), found.Err()
}

// Events returns the log of a session.
func (s *Store) Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		var h head
		err := s.patiently(ctx, "events", id, func(ctx context.Context) (err error) {
			h, err = headOf(ctx, s.pool, id, unlocked)
			return err
		})
		for next := max(from, 1); err == nil && next <= h.last; {
			var events []runnerscripts.Event
			// No connection is held while the caller has an event: it may take any time.
			err = s.patiently(ctx, "events", id, func(ctx context.Context) (err error) {
				events, err = readEvents(ctx, s.pool, h.n, id, next, h.last)
				return err
			})
			for i := 0; i < len(events) && err == nil; i++ {
				if !yield(events[i], nil) {
					return
				}
				if ctx.Err() != nil {
					err = &store.Error{Op: "events", ID: id, Err: ctx.Err()}
				}
			}
			next += uint64(len(events))
		}
		if err != nil {
			yield(runnerscripts.Event{}, err)
		}
	}
}

// readEvents returns at least one event, starting at from.
func readEvents(ctx context.Context, q querier, n int64, id string, from, last uint64) ([]runnerscripts.Event, error) {
	found, err := q.Query(ctx, `SELECT seq, own, envelope, payload FROM (
			SELECT *, sum(octet_length(envelope) + coalesce(octet_length(payload), 0)) OVER (ORDER BY seq) AS size
			FROM event WHERE session = $1 AND seq BETWEEN $2 AND $3
		) AS sized WHERE size <= $4 OR seq = $2 ORDER BY seq`, n, int64(from), int64(min(last, from+readRows-1)), readAhead)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var events []runnerscripts.Event
	for found.Next() {
		var seq int64
		var own bool
		var envelope, payload []byte
		if err := found.Scan(&seq, &own, &envelope, &payload); err != nil {
			return nil, err
		}
		want := from + uint64(len(events))
		var ev runnerscripts.Event
		if uint64(seq) != want || json.Unmarshal(envelope, &ev) != nil {
			return nil, fmt.Errorf("%w: event %d", store.ErrCorrupt, want)
		}
		if ev.Seq, ev.Payload = want, payload; own {
			ev.SessionID = id
		}
		events = append(events, ev)
	}
	if err := found.Err(); err != nil || len(events) > 0 {
		return events, err
	}
	if _, err := headOf(ctx, q, id, unlocked); err != nil { // it was deleted meanwhile
		return nil, err
	}
	return nil, fmt.Errorf("%w: event %d is missing", store.ErrCorrupt, from)
}
