//go:build linux

package main

import (
	"fmt"
	"slices"
	"time"
)

// row is one line of the table: the cost of the floor, our cost, and their ratio.
type row struct {
	Name   string  `json:"name"`
	Base   string  `json:"base"`   // the name of the floor
	Unit   string  `json:"unit"`   // of BaseV and Ours
	Better string  `json:"better"` // "lower", "higher" or "faster": which ratio is good
	BaseV  float64 `json:"base_value"`
	Ours   float64 `json:"ours"`
	Ratio  float64 `json:"ratio"` // ours / base; base / ours if Better is "faster"
	Target float64 `json:"target"`
	Met    bool    `json:"met"`
}

// The directions in which a figure improves.
const (
	lower  = "lower"
	higher = "higher"
	faster = "faster" // the ratio is a speedup
)

// ratioRow compares two figures of the same kind.
func ratioRow(name, base, unit, better string, baseV, ours, target float64) row {
	r := row{Name: name, Base: base, Unit: unit, Better: better, BaseV: baseV, Ours: ours, Target: target}
	if baseV != 0 {
		r.Ratio = ours / baseV
	}
	r.Met = r.Ratio <= target
	if better == higher {
		r.Met = r.Ratio >= target
	}
	return r
}

// speedupRow compares two durations. ours should be target times shorter.
func speedupRow(name, base string, baseV, ours time.Duration, target float64) row {
	r := row{Name: name, Base: base, Unit: "ms", Better: faster, BaseV: millis(baseV), Ours: millis(ours), Target: target}
	r.Ratio = baseV.Seconds() / ours.Seconds()
	r.Met = r.Ratio >= target
	return r
}

// limitRow compares a figure with an absolute limit.
func limitRow(name, unit, better string, ours, target float64) row {
	r := row{Name: name, Unit: unit, Better: better, Ours: ours, Target: target, Met: ours <= target}
	if better == higher {
		r.Met = ours >= target
	}
	return r
}

// interleave runs both functions in turn, n times after a warm-up, and returns the median
// duration of each. Taking turns cancels the drift of a shared machine.
func interleave(n int, base, ours func() error) (baseV, oursV time.Duration, err error) {
	for range max(1, n/20) {
		if err := both(base, ours, nil, nil); err != nil {
			return 0, 0, err
		}
	}
	b, o := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	for i := range n {
		// Alternate the order too: the second one finds warmer caches.
		if i%2 == 0 {
			err = both(base, ours, &b, &o)
		} else {
			err = both(ours, base, &o, &b)
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return median(b), median(o), nil
}

func both(first, second func() error, f, s *[]time.Duration) error {
	if err := timed(first, f); err != nil {
		return err
	}
	return timed(second, s)
}

func timed(run func() error, to *[]time.Duration) error {
	start := time.Now()
	if err := run(); err != nil {
		return err
	}
	if to != nil {
		*to = append(*to, time.Since(start))
	}
	return nil
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// rate returns units per second for an amount and its duration.
func rate(amount float64, d time.Duration) float64 { return amount / d.Seconds() }

func format(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 1000:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// fastest is like interleave with the minimum instead of the median.
func fastest(n int, base, ours func() error) (baseV, oursV time.Duration, err error) {
	var b, o []time.Duration
	for range n {
		if err := both(base, ours, &b, &o); err != nil {
			return 0, 0, err
		}
	}
	return slices.Min(b), slices.Min(o), nil
}

// contestant is one way of doing something.
type contestant struct {
	times int // in each round; quick ones need more
	// run does it once and returns how long that took.
	run func() (time.Duration, error)
}

// clocked returns a contestant that times all of run.
func clocked(times int, run func() error) contestant {
	return contestant{times, func() (time.Duration, error) {
		start := time.Now()
		err := run()
		return time.Since(start), err
	}}
}

// clockedAfter is clocked with a preparation before each run.
func clockedAfter(prepare, run func() error) contestant {
	again := clocked(1, run)
	return contestant{1, func() (time.Duration, error) {
		if err := prepare(); err != nil {
			return 0, err
		}
		return again.run()
	}}
}

// compete runs all contestants in turn, after a round that does not count, and returns the
// sorted durations of each.
func compete(rounds int, all ...contestant) ([][]time.Duration, error) {
	took := make([][]time.Duration, len(all))
	for round := range rounds + 1 {
		for k := range all {
			i := (round + k) % len(all) // so that none always follows the same other
			for range all[i].times {
				d, err := all[i].run()
				if err != nil {
					return nil, err
				}
				if round > 0 {
					took[i] = append(took[i], d)
				}
			}
		}
	}
	for _, d := range took {
		slices.Sort(d)
	}
	return took, nil
}

// mid returns the middle of sorted durations.
func mid(d []time.Duration) time.Duration { return d[len(d)/2] }
