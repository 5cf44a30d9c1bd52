package sqlite

import (
	"fmt"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// BenchmarkAppend appends batches of 1 and of 100 events. One operation is one batch.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			s, _ := withSession(b)
			seq := uint64(0)
			for b.Loop() {
				if err := s.Append(b.Context(), "s", batch(&seq, size)...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(seq)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func batch(seq *uint64, size int) []runnerscripts.Event {
	events := make([]runnerscripts.Event, size)
	for i := range events {
		*seq++
		events[i] = numbered(*seq)
	}
	return events
}

func BenchmarkEvents100000(b *testing.B) {
	s, _ := withSession(b)
	for seq := uint64(0); seq < 100_000; {
		if err := s.Append(b.Context(), "s", batch(&seq, 1000)...); err != nil {
			b.Fatal(err)
		}
	}
	for _, from := range []uint64{1, 99_990} {
		b.Run(fmt.Sprintf("from=%d", from), func(b *testing.B) {
			for b.Loop() {
				for _, err := range s.Events(b.Context(), "s", from) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkList1000(b *testing.B) {
	s, _ := withSession(b)
	for i := range 1000 {
		r := store.Record{ID: fmt.Sprint(i), Agent: "claude", Title: "a title", Config: make([]byte, 1000), State: make([]byte, 2000)}
		if err := s.Create(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for _, err := range s.List(b.Context(), store.Filter{}) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
