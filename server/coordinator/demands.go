package coordinator

import (
	"net/http"
	"slices"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// merge returns the demands of both. More demands never make a run fit another runner: what both demand must be the same.
func merge(a, b coordapi.Demands) (coordapi.Demands, error) {
	for _, f := range []struct {
		name string
		to   *string
		more string
	}{
		{"hostname", &a.Hostname, b.Hostname},
		{"project_dir", &a.ProjectDir, b.ProjectDir},
		{"executor_profile", &a.ExecutorProfile, b.ExecutorProfile},
		{"executor_type", &a.ExecutorType, b.ExecutorType},
	} {
		switch {
		case f.more == "" || f.more == *f.to:
		case *f.to == "":
			*f.to = f.more
		default:
			return a, named(http.StatusBadRequest, "conflicting_demands",
				"additional_demands: %s: the agent or the session demands %q, so no runner could have %q; leave it out", f.name, *f.to, f.more)
		}
	}
	a.Tags = slices.Concat(a.Tags, b.Tags)
	slices.Sort(a.Tags)
	a.Tags = slices.Compact(a.Tags)
	return a, nil
}

// demands returns what the next run of a session demands: the runner that has the session, with the tags that the start demanded.
func (s *session) demands() coordapi.Demands {
	d := coordapi.Demands{Hostname: s.Hostname, ExecutorProfile: s.ExecutorProfile, Tags: s.Tags}
	if s.bound() {
		d.ProjectDir = s.RunnerDir
	}
	return d
}

// bound reports whether a runner has the session.
func (s *session) bound() bool { return s.ExecutorSessionID != "" && s.Runner != "" }

// mayRun reports whether a runner may get a run: it meets the demands and is the runner that has the session, also started again. No
// demand says that a runner has no folder, and a run that was asked for before its session was bound demands no runner.
func (t *tx) mayRun(o *run, r *runner) bool {
	s := t.c.sessions[o.SessionID]
	return meets(r.Registration, o.Demands) && (!s.bound() || s.Runner == r.ID)
}

// meets reports whether a runner meets demands.
func meets(r coordapi.Registration, d coordapi.Demands) bool {
	is := func(demand, has string) bool { return demand == "" || demand == has }
	has := func(tag string) bool { return slices.Contains(r.Tags, tag) }
	return is(d.Hostname, r.Hostname) && is(d.ProjectDir, r.ProjectDir) && is(d.ExecutorProfile, r.ExecutorProfile) &&
		is(d.ExecutorType, r.Executor.Type) &&
		!slices.ContainsFunc(d.Tags, func(tag string) bool { return !has(tag) }) &&
		(!r.RequireMatchingTags || slices.ContainsFunc(d.Tags, has))
}
