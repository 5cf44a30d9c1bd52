package primitivestest

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Harness connects the suite to a backend. Only Open is required. If another function is nil,
// the suite leaves out the cases that need it, and logs them.
type Harness struct {
	// Open creates a fresh sandbox. The suite terminates and closes it. dir is an empty folder
	// of the host for the backend's files: the same folder in every call, also in calls from
	// other processes.
	Open func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error)

	// Attach opens a live sandbox of Open once more by its ID. It is called in
	// this process and in others.
	Attach func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error)

	// Destroy ends a sandbox without its handles: it removes the container, cuts the connection
	// or kills the guest.
	Destroy func(ctx context.Context, p primitives.EnvironmentPrimitive) error

	// Restore creates a sandbox from a snapshot of primitives.Snapshot. Forget removes the
	// snapshot. Both are required if the sandboxes support snapshots.
	Restore func(ctx context.Context, dir, snapshot string) (primitives.EnvironmentPrimitive, error)
	Forget  func(ctx context.Context, snapshot string) error

	// Provider returns the provider of the sandboxes and the spec to create them from. It is
	// called in this process and in others.
	Provider func(dir string) (primitives.Provider, primitives.Spec)

	// NoSetID says that the sandboxes refuse to set the set-user-ID bit of a file, and that the
	// suite expects it. False means that they set it.
	NoSetID bool

	// Groups names the groups of the contract to run, for another run under other
	// circumstances. Nil means all of them: "exec", "streams", "ending", "terminal", "files",
	// "archive", "watch", "lifecycle", "forward", "copies".
	Groups []string

	// Patience is how long to wait for something that must happen before the case fails. Zero
	// means a minute. It does not measure speed.
	Patience time.Duration
}

// Run checks a backend against the contract, one subtest per rule.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if runAsClient(t, h) {
		return
	}
	prepareHost(t)
	s := newSuite(t, h)
	s.witness(t) // so that it is not a leak of the first group that needs it
	t.Cleanup(func() { s.endWitness(t) })
	all := groups()
	for _, name := range h.Groups {
		if !slices.ContainsFunc(all, func(g group) bool { return g.name == name }) {
			t.Fatalf("the contract has no group %q", name)
		}
	}
	for _, g := range all {
		if h.Groups != nil && !slices.Contains(h.Groups, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) { s.runGroup(t, g) })
	}
}

// hostVariable is set in the environment of the test's process. No sandbox may see it.
const hostVariable = "PRIMITIVESTEST_HOST"

// prepareHost sets the environment of the test's process.
func prepareHost(t *testing.T) {
	t.Helper()
	t.Setenv(hostVariable, "host")
	// Programs with the race detector sleep for a second when they exit. Clients and guests
	// that run the test's own program are such programs.
	t.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
}

// group is one group of rules of the contract.
type group struct {
	name  string
	rules []rule
}

// split separates the rules that the harness allows from the others.
func (g group) split(h Harness) (tried, leftOut []rule) {
	for _, r := range g.rules {
		if r.possible == nil || r.possible(h) {
			tried = append(tried, r)
		} else {
			leftOut = append(leftOut, r)
		}
	}
	return tried, leftOut
}

// rule is one rule of the contract and its check.
type rule struct {
	name string
	// own gives the case a sandbox that it may end.
	own bool
	// after gives the case a sandbox that has ended in this way, without the probe and without
	// a folder of the case. All such cases share the sandbox.
	after ending
	check func(t testingT, s *sandbox)
	// possible reports whether the harness allows the case; nil means always.
	possible func(h Harness) bool
}

// testingT is the part of testing.TB that cases use, so that the suite can be
// run on broken backends and be expected to fail.
type testingT interface {
	Helper()
	Context() context.Context
	Cleanup(f func())
	Name() string
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// groups returns the whole contract.
func groups() []group {
	return []group{
		{"exec", concat(exitRules(), startRules(), commandRules(), processRules())},
		{"streams", concat(outputRules(), inputRules(), unreadRules(), flowRules())},
		{"ending", concat(endingRules(), treeRules(), terminateRules())},
		{"terminal", terminalRules()},
		{"files", concat(readRules(), writeRules(), atomicRules(), batchRules(), statRules(), listRules(), changeRules(), pathRules(), nameRules(), writeEndingRules())},
		{"archive", archiveRules()},
		{"watch", concat(watchRules(), watchFilterRules())},
		{"lifecycle", concat(lifecycleRules(), durableRules(), clientRules(), providerRules())},
		{"forward", forwardRules()},
		{"copies", concat(copyRules(), pauseRules(), usageRules())},
	}
}

func concat(lists ...[]rule) []rule {
	var all []rule
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
