package sqlite

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/session/store"
)

// BenchmarkWriters appends one event at a time to a session of its own for each writer. state is
// the size of the State in each record. The floor is a table of events alone, without a record.
func BenchmarkWriters(b *testing.B) {
	b.Run("floor/inserts", benchmarkInserts)
	for _, c := range []struct{ writers, state int }{{1, 0}, {1, 1 << 20}, {200, 0}, {200, 18 << 10}} {
		b.Run(fmt.Sprintf("writers=%d/state=%d", c.writers, c.state), func(b *testing.B) {
			s := opened(b, b.TempDir())
			for i := range c.writers {
				if err := s.Create(b.Context(), store.Record{ID: fmt.Sprint(i), State: slices.Repeat([]byte{'1'}, c.state)}); err != nil {
					b.Fatal(err)
				}
			}
			each := max(b.N/c.writers, 1)
			took := make([][]time.Duration, c.writers)
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range took {
				wg.Go(func() {
					for seq := uint64(1); seq <= uint64(each); seq++ {
						start := time.Now()
						if err := s.Append(b.Context(), fmt.Sprint(i), numbered(seq)); err != nil {
							b.Error(err)
							return
						}
						took[i] = append(took[i], time.Since(start))
					}
				})
			}
			wg.Wait()
			all := slices.Sorted(slices.Values(slices.Concat(took...)))
			b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// benchmarkInserts inserts one event in each transaction.
func benchmarkInserts(b *testing.B) {
	db, err := connect(filepath.Join(b.TempDir(), "db"), "", busyTimeout, 1, url.Values{"_pragma": {"synchronous(NORMAL)"}})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(b.Context(), "PRAGMA journal_mode = WAL; CREATE TABLE event (seq INTEGER PRIMARY KEY, payload BLOB)"); err != nil {
		b.Fatal(err)
	}
	add, err := db.PrepareContext(b.Context(), "INSERT INTO event VALUES (?, ?)")
	if err != nil {
		b.Fatal(err)
	}
	defer add.Close()
	for seq := uint64(1); b.Loop(); seq++ {
		if _, err := add.ExecContext(b.Context(), seq, bytesOf(numbered(seq).Payload)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
