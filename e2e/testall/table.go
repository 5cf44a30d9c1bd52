package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table prints what each package took, the most expensive first, and how many tests ran.
func (r *runner) table(w io.Writer, s *starts) {
	type row struct {
		path            string
		tests           int
		wall            time.Duration
		cpu, containers float64
	}
	rows := map[string]*row{}
	for _, res := range r.done {
		p := rows[res.path]
		if p == nil {
			p = &row{path: strings.TrimPrefix(res.path, module)}
			p.cpu = r.reported(res.path, "cpu")
			p.containers = r.reported(res.path, "containers")
			rows[res.path] = p
		}
		p.tests, p.wall = p.tests+res.passed, p.wall+res.wall
	}
	sorted := make([]*row, 0, len(rows))
	total := row{path: "all"}
	for _, p := range rows {
		sorted = append(sorted, p)
		total.tests, total.wall, total.cpu, total.containers = total.tests+p.tests, total.wall+p.wall, total.cpu+p.cpu, total.containers+p.containers
	}
	slices.SortFunc(sorted, func(a, b *row) int { return int(100 * (b.cpu - a.cpu)) })
	fmt.Fprintln(w, "What the tests took, without compiling, the engine and what runs in containers:")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "tests\twall s\tcpu s\tcontainers\tpackage\tstarts of real agents\t")
	for _, p := range append(sorted, &total) {
		fmt.Fprintf(table, "%d\t%.0f\t%.0f\t%.0f\t%s\t%s\t\n", p.tests, p.wall.Seconds(), p.cpu, p.containers, p.path, s.of(p.path))
	}
	for _, place := range []string{inContainers, unknown} {
		fmt.Fprintf(table, "\t\t\t\t%s\t%s\t\n", place, s.of(place))
	}
	_ = table.Flush()
	if s.err != nil {
		fmt.Fprintln(w, "starts of agents are not counted:", s.err)
	}
	for _, res := range r.done {
		if res.failed {
			fmt.Fprintln(w, "failed:", strings.TrimPrefix(res.path, module), strings.Join(res.broken, ", "))
		}
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.sum.passed, r.sum.failed, r.sum.skipped)
}
