package drivertest

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// patience is how long one step of a case may take.
const patience = 10 * time.Minute

// update makes TestDrivers write the table of agents.
var update = flag.Bool("update", false, "write the table of docs/agents.md from what the suite shows")

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	testleak.Main(m)
}

// rig runs one case with one agent: a session of the real program with a scripted model. The cases
// of a group share everything except testing.TB and mark.
type rig struct {
	*Fixture
	subject
	servers []*agenttest.MCP   // of the profile
	starts  string             // a file with the process id of each start of the program, one a line
	shared  agent.Conversation // the conversation of the group; nil before its first case
	cancel  context.CancelFunc // ends the context of shared
	running *query             // the last query of begin
}

func newRig(t testing.TB, s subject) *rig {
	t.Helper()
	return &rig{Fixture: New(t, s.driver, s.name), subject: s}
}

// in runs a case of a group.
func (r *rig) in(t testing.TB, check func(*rig)) {
	before := r.TB
	r.TB, r.mark = t, len(r.Out.All())
	defer func() { r.TB = before }()
	check(r)
}

// supports reports whether the agent has features.
func (s subject) supports(features ...runnerscripts.Feature) bool {
	has := s.driver.Recipe().Supports
	return !slices.ContainsFunc(features, func(f runnerscripts.Feature) bool { return !slices.Contains(has, f) })
}

// keeps reports whether a rule is for the agent.
func (s subject) keeps(r rule) bool {
	return s.supports(r.features...) && (r.only == nil || r.only(s))
}

// real gives the session the pinned program and a scripted model.
func (r *rig) real() {
	r.Helper()
	r.StartModel()
	r.starts = filepath.Join(r.whole.TempDir(), "starts")
	r.model(r.whole, &r.Session, r.API.URL)
	r.Session.Agent.Command = append([]string{r.find(r)}, r.args...)
}

// setUp calls real unless it was called, and the Setup of the driver. Each later start of the program
// is recorded.
func (r *rig) setUp() {
	r.Helper()
	if r.API == nil {
		r.real()
	}
	r.SetUp()
	r.Session.Agent.Command = append([]string{"/bin/sh", "-c", `echo $$ >>` + r.starts + `; exec "$@"`, "sh"}, r.Session.Agent.Command...)
}

// talk returns the conversation of the group, and starts it for the first case.
func (r *rig) talk() agent.Conversation {
	r.Helper()
	if r.shared == nil {
		r.setUp()
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(r.whole.Context())
		r.whole.Cleanup(r.cancel)
		r.shared = r.StartWith(ctx, r.Out)
	}
	return r.shared
}

// pids returns the process id of each start of the program.
func (r *rig) pids() (list []int) {
	r.Helper()
	data, err := os.ReadFile(r.starts)
	if err != nil {
		r.Fatal(err)
	}
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			r.Fatal(err)
		}
		list = append(list, pid)
	}
	return list
}

// pid returns the process id of the last start of the program.
func (r *rig) pid() int {
	r.Helper()
	list := r.pids()
	return list[len(list)-1]
}

// ended is how a query ended.
type ended struct {
	done runnerscripts.QueryCompleted
	err  error
}

// query is a query that runs on a goroutine of its own.
type query struct {
	over chan struct{} // closed when ended is set
	ended
}

// begin starts a query.
func (r *rig) begin(c agent.Conversation, text string) *query {
	return r.beginWith(r.Context(), c, text)
}

// beginWith starts a query that ends with ctx.
func (r *rig) beginWith(ctx context.Context, c agent.Conversation, text string) *query {
	q := &query{over: make(chan struct{})}
	r.running = q
	go func() {
		defer close(q.over)
		q.done, q.err = c.Prompt(ctx, "query", text)
	}()
	return q
}

// isOver reports whether a query has ended.
func (q *query) isOver() bool {
	select {
	case <-q.over:
		return true
	default:
		return false
	}
}

// await waits for the end of a query.
func (r *rig) await(q *query) ended {
	r.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-q.over:
		return q.ended
	case <-timer.C:
		r.Fatalf("the query has not ended; there were:\n%s", agenttest.Describe(r.Out.All()))
		return ended{}
	}
}

// until waits until ready returns true.
func (r *rig) until(what string, ready func() bool) {
	r.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ready(); <-tick.C {
		if time.Now().After(end) {
			r.Fatalf("there is still not %s; there were:\n%s", what, agenttest.Describe(r.Events()))
		}
	}
}

// during waits until ready returns true. It fails when the last query has ended before that.
func (r *rig) during(what string, ready func() bool) {
	r.Helper()
	r.until(what, func() bool {
		over := r.running.isOver()
		if ready() {
			return true
		}
		if over {
			r.Fatalf("the query ended before %s, with %q, %v; there were:\n%s", what, r.running.done.StopReason, r.running.err, agenttest.Describe(r.Events()))
		}
		return false
	})
}

// held waits until the model pauses in the middle of an answer.
func (r *rig) held() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if err := r.API.WaitHeld(ctx); err != nil {
		r.Fatal(err)
	}
}

// prompt runs a query that must not fail.
func (r *rig) prompt(c agent.Conversation, text string) runnerscripts.QueryCompleted {
	r.Helper()
	e := r.await(r.begin(c, text))
	if e.err != nil {
		r.Fatalf("prompt %q: %v", text, e.err)
	}
	return e.done
}

// wait waits for an event of this case while a query runs.
func (r *rig) wait(what string, fits func(runnerscripts.Event) bool) {
	r.Helper()
	r.during(what, func() bool { return slices.ContainsFunc(r.Events(), fits) })
}

// asked returns the permission request of this case with the index n, and waits for it.
func (r *rig) asked(n int) runnerscripts.PermissionRequest {
	r.Helper()
	r.during("a permission request", func() bool { return len(r.Requests()) > n })
	return r.Requests()[n]
}

// resolved returns the permission_resolved events of this case.
func (r *rig) resolved() []runnerscripts.PermissionResolved {
	r.Helper()
	return agenttest.Payloads[runnerscripts.PermissionResolved](r, r.Events(), runnerscripts.TypePermissionResolved)
}

// answer runs a query that asks for permission once, and answers with a decision of that kind.
func (r *rig) answer(c agent.Conversation, prompt string, kind runnerscripts.PermissionKind) ended {
	r.Helper()
	before := len(r.Requests())
	query := r.begin(c, prompt)
	if err := c.Respond(r.Context(), r.asked(before).ID, runnerscripts.PermissionDecision{Kind: kind}); err != nil {
		r.Fatal(err)
	}
	return r.await(query)
}

// lastRequest returns the last request to the model that offers tools. Agents also request titles,
// without tools.
func (r *rig) lastRequest() llmapi.Request {
	r.Helper()
	for _, q := range slices.Backward(r.API.Requests()) {
		if len(q.Tools) > 0 {
			return q
		}
	}
	r.Fatal("the model was asked nothing")
	return llmapi.Request{}
}

// sent reports whether a text was in a request to the model.
func (r *rig) sent(text string) bool {
	return slices.ContainsFunc(r.API.Requests(), func(q llmapi.Request) bool { return strings.Contains(string(q.Body), text) })
}

// initialized returns the session_initialized events of the session.
func (r *rig) initialized() []runnerscripts.SessionInitialized {
	r.Helper()
	return agenttest.Payloads[runnerscripts.SessionInitialized](r, r.Out.All(), runnerscripts.TypeSessionInitialized)
}
