package coordinator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// The log has up to 100,000 events of each session: what each event, each deletion, each list and each stream asks of it uses an index,
// and a stream reads nothing that it has passed.
func TestQueriesOfTheLogUseAnIndex(t *testing.T) {
	d, err := openDB(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	statements := map[string]string{
		hasKey: "entry_key (session=? AND key=?)", forgetSession: "entry_session (session=?)", forgetDeletions: "entry_deleted (kind=? AND",
		forgetFailures: "entry_session (session=? AND kind=? AND seq<?)",
		countEvents:    "SCAN entry USING COVERING INDEX entry_session",
	}
	caller := "alice"
	for index, queries := range map[string][]query{
		"PRIMARY KEY (rowid>?)":                        {{}, {session: "s"}, {caller: &caller}},
		"entry_session (session=? AND kind=? AND seq>": {{session: "s", kind: kindEvent}},
	} {
		for _, q := range queries {
			text, _ := q.sql()
			statements[text] = index
		}
	}
	for query, index := range statements {
		rows, err := d.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, []any{1, 2, 3, 4}[:strings.Count(query, "?")]...)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(plan, "; ")
		rest := strings.ReplaceAll(text, "SCAN entry USING COVERING INDEX", "") // it reads no row
		if !strings.Contains(text, index) || strings.Contains(rest, "SCAN entry") || strings.Contains(text, "TEMP B-TREE") {
			t.Errorf("%s: %s", query, text)
		}
	}
}

// A session may have any number of runs that fail, and only so many of them are kept.
func TestTheLogForgetsFailures(t *testing.T) {
	d, err := openDB(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var list []entry
	for range keptRuns + 20 {
		for _, session := range []string{"a", "b"} {
			list = append(list, entry{kind: kindRunFailed, session: session, data: json.RawMessage("{}")})
		}
	}
	list = append(list, entry{kind: kindEvent, session: "a", data: json.RawMessage("{}")})
	if err := d.commit(t.Context(), nil, list); err != nil {
		t.Error(err)
	}
	var n, first int
	err = d.read.QueryRowContext(t.Context(), "SELECT count(*), min(seq) FROM entry").Scan(&n, &first)
	if err = errors.Join(err, d.close()); err != nil || n != 2*keptRuns+1 || first != 41 {
		t.Errorf("there are %d entries from %d on, %v", n, first, err)
	}
}

// SQLite does not wait by itself: a request that meets another one, or a program that copies the database, would fail. A change waits
// for no reader: it would hold up everything.
func TestEachConnectionWaitsForTheOthers(t *testing.T) {
	d, err := openDB(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var all []*sql.Conn
	for range 2 {
		conn, err := d.read.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
		var ms int64
		if err := conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&ms); err != nil || ms != busyWait.Milliseconds() {
			t.Errorf("it waits %d ms, %v", ms, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), busyWait)
	defer cancel()
	if err := d.commit(ctx, nil, []entry{{kind: kindEvent, session: "s", key: "k"}}); err != nil {
		t.Errorf("a change, while all connections for reading are in use: %v", err)
	}
	if has, err := d.has(ctx, "s", "k"); !has || err != nil {
		t.Errorf("the change finds its event: %v, %v", has, err)
	}
	if err := errors.Join(all[0].Close(), all[1].Close(), d.close()); err != nil {
		t.Error(err)
	}
}

// An event has up to 4 MiB, and each stream holds a batch of them in memory.
func TestABatchOfLargeEventsIsSmall(t *testing.T) {
	d, err := openDB(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	large := entry{kind: kindEvent, session: "s", data: json.RawMessage(`"` + strings.Repeat("x", 600<<10) + `"`)}
	if err := d.commit(t.Context(), nil, []entry{large, large, large}); err != nil {
		t.Fatal(err)
	}
	q := query{session: "s"}
	for _, want := range []int{2, 1} {
		list, more, err := d.next(t.Context(), &q)
		if err != nil || len(list) != want || more != (want == 2) || q.after != list[len(list)-1].seq {
			t.Errorf("there are %d, up to %d, more %v, %v; want %d", len(list), q.after, more, err, want)
		}
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}
