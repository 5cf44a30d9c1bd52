package primitivestest

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Harness is what a backend lends the suite. Only Open is required; a function
// that is nil leaves out the cases that cannot be done without it, which the suite logs.
type Harness struct {
	// Open makes a fresh sandbox. The suite terminates and closes it. dir is an
	// empty folder of the host for whatever the backend wants to keep there:
	// the same one in every call, also in those from other processes.
	Open func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error)

	// Attach opens a live sandbox of Open once more by its ID. It is called in
	// this process and in others.
	Attach func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error)

	// Destroy ends a sandbox from outside, behind the back of its handles: it
	// removes the container, cuts the connection, kills the guest.
	Destroy func(ctx context.Context, p primitives.EnvironmentPrimitive) error

	// Restore makes a sandbox of what primitives.Snapshot has kept, and Forget
	// removes that. Both are needed if the sandboxes can be kept.
	Restore func(ctx context.Context, dir, snapshot string) (primitives.EnvironmentPrimitive, error)
	Forget  func(ctx context.Context, snapshot string) error

	// Provider returns the provider of the sandboxes, and what it makes them of. It is
	// called in this process and in others.
	Provider func(dir string) (primitives.Provider, primitives.Spec)

	// NoSetID says that the sandboxes refuse to set the set-user-ID bit of a file, and the
	// suite expects it. False means that they set it.
	NoSetID bool

	// Groups names the chapters of the contract to run, for one more run in other
	// circumstances. Nil means all of them: "exec", "streams", "ending", "terminal",
	// "files", "archive", "watch", "lifecycle", "copies".
	Groups []string

	// Patience is how long to wait for something that must happen before the
	// case fails. Zero means a minute. It is no measure of speed.
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
	s.witness(t) // is no leak of the first group that needs it
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

// hostVariable is set in the environment of the test's process. It must not be
// seen in any sandbox.
const hostVariable = "PRIMITIVESTEST_HOST"

// prepareHost sets the environment of the test's process.
func prepareHost(t *testing.T) {
	t.Helper()
	t.Setenv(hostVariable, "host")
	// Programs that were built with the race detector, as clients and guests
	// are that run the test's own program, rest for a second when they exit.
	t.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
}

// group is a chapter of the contract.
type group struct {
	name  string
	rules []rule
}

// split tells the rules that can be tried with the harness from the others.
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

// rule is one promise of the contract and how to see whether it is kept.
type rule struct {
	name string
	// own gives the case a sandbox that it may end.
	own bool
	// after gives the case a sandbox that has ended like this, without the probe
	// and without a folder of the case; all such cases share it.
	after ending
	check func(t testingT, s *sandbox)
	// possible says whether the harness allows the case; nil means always.
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
