package coordinator

import (
	"strings"
	"testing"
)

// The log has up to 100,000 events of each session: what each event and each deletion asks of it uses an index.
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
	for query, index := range map[string]string{hasKey: "entry_key (session=? AND key=?)", forgetSession: "entry_session (session=?)", forgetDeletions: "entry_deleted (kind=? AND"} {
		rows, err := d.sql.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, []any{"a", "b"}[:strings.Count(query, "?")]...)
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
		if text := strings.Join(plan, "; "); !strings.Contains(text, index) || strings.Contains(text, "SCAN entry") {
			t.Errorf("%s: %s", query, text)
		}
	}
}
