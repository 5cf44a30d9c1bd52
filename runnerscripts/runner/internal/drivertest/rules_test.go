package drivertest

import (
	"slices"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// group says which rules share a session of an agent. They share one because a start takes most of
// the time.
type group int

const (
	alone    group = iota // the rule has a session of its own
	talking               // the rules share a conversation
	profiled              // the rules share a session with everything supported in its profile
)

// rule is a requirement for every driver whose agent has the features. Its name is unique. The
// suite checks the rules of a group in order.
type rule struct {
	name     string
	group    group
	features []runnerscripts.Feature // the features that it shows
	check    func(r *rig)
}

func rules() []rule {
	const (
		permissions = runnerscripts.FeaturePermissions
		interrupt   = runnerscripts.FeatureInterrupt
	)
	return slices.Concat([]rule{
		{name: "the recipe installs what the tests run", check: recipe},
		{name: "a program in an npm package is not started for its version", check: packagedVersion},
		{name: "a missing program says how to install it", check: missingProgram},
		{name: "no transcript yet is an empty one", check: noTranscript},
		{name: "a crash withdraws the permission request and the next prompt goes on", check: crash},
		{name: "closing ends a running query and the program", check: closeRunning},
		{name: "the end of the context ends the program", check: endOfContext},
		{name: "a new process remembers the conversation", check: newProcess},
		{"a restored session remembers the conversation", alone, []runnerscripts.Feature{runnerscripts.FeatureResume}, restored},
		{name: "an API that cannot be reached is reported while the agent tries again", check: unreachable},
		{"a limit of turns ends the query", alone, []runnerscripts.Feature{runnerscripts.FeatureMaxTurns}, maxTurns},
		{"a budget ends the query", alone, []runnerscripts.Feature{runnerscripts.FeatureBudget}, budget},

		{"text arrives in pieces with all its white space", talking, nil, pieces},
		{"two prompts share a process", talking, nil, sharedProcess},
		{"the tokens of a query are its own", talking, []runnerscripts.Feature{runnerscripts.FeatureUsage}, usage},
		{"a query tells its cost", talking, []runnerscripts.Feature{runnerscripts.FeatureCost}, cost},
		{"thoughts are told", talking, []runnerscripts.Feature{runnerscripts.FeatureThinking}, thoughts},
		{"a decision counts once", talking, []runnerscripts.Feature{permissions}, decisionCounts},
		{"a decision may name an option", talking, []runnerscripts.Feature{permissions}, decidedByOption},
		{"a file that is written is a diff", talking, nil, writesAFile},
		{"a file that is changed is a diff", talking, nil, editsAFile},
		{"a failed command shows its output", talking, nil, failingCommand},
		{"two tools of one message are two calls", talking, nil, twoTools},
		{"a subagent has a conversation of its own", talking, nil, subagent},
		{"a failure of the API fails the query and the next prompt goes on", talking, nil, failingAPI},
		// A transcript may lack what these rules do.
		{"a rejected tool does not run", talking, []runnerscripts.Feature{permissions}, rejected},
		{"the mode changes between prompts", talking, []runnerscripts.Feature{runnerscripts.FeaturePermissionMode, runnerscripts.FeatureSetMode}, changedMode},
		{"an interrupt withdraws the permission request of a command", talking, []runnerscripts.Feature{interrupt}, func(r *rig) { interruptWithdraws(r, "run-command `touch stopped`") }},
		{"an interrupt withdraws the permission request of a file", talking, []runnerscripts.Feature{interrupt}, func(r *rig) { interruptWithdraws(r, "write-file `stopped`") }},
		{"a rejection may interrupt the query", talking, []runnerscripts.Feature{permissions, interrupt}, rejectedAndInterrupted},
		{"an interrupt ends a running command", talking, []runnerscripts.Feature{permissions, interrupt}, interruptedCommand},
		{"an interrupt in the middle of an answer leaves the session usable", talking, []runnerscripts.Feature{interrupt}, interruptedAnswer},
		{"an interrupt right after the prompt is not lost", talking, []runnerscripts.Feature{interrupt}, earlyInterrupt},
		// These rules come last, because their changes persist in the session, or because a transcript
		// may have the input before the answer.
		{"another input of a tool runs or is refused", talking, []runnerscripts.Feature{permissions}, anotherInput},
		{"what is allowed for the session is not asked again", talking, []runnerscripts.Feature{runnerscripts.FeatureAllowAlways}, allowedAlways},
		{"the model changes between prompts", talking, []runnerscripts.Feature{runnerscripts.FeatureModel, runnerscripts.FeatureSetModel}, changedModel},
	}, profileRules())
}

// TestDrivers checks every rule with every agent, and compares the table of agents with the
// results.
func TestDrivers(t *testing.T) {
	table := newTable()
	t.Cleanup(func() { table.check(t) })
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, g := range []group{talking, profiled} {
				t.Run(map[group]string{talking: "talking", profiled: "profiled"}[g], func(t *testing.T) {
					t.Parallel()
					shared := newRig(t, s, 10*time.Minute)
					for _, rule := range rules() {
						if rule.group == g && shared.supports(rule.features...) {
							t.Run(rule.name, func(t *testing.T) { table.run(t, s, rule, func() { shared.in(t, rule.check) }) })
						}
					}
				})
			}
			for _, rule := range rules() {
				if r := newRig(t, s, 10*time.Minute); rule.group == alone && r.supports(rule.features...) {
					t.Run(rule.name, func(t *testing.T) {
						t.Parallel()
						table.run(t, s, rule, func() { rule.check(newRig(t, s, 10*time.Minute)) })
					})
				}
			}
		})
	}
}
