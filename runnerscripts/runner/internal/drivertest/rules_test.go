package drivertest

import (
	"slices"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// group says which rules share a session of an agent. They share one because a start takes most of
// the time.
type group int

const (
	alone     group = iota // the rule has a session of its own
	talking                // the rules share a conversation
	profiled               // the rules share a session with everything supported in its profile
	ending                 // the rules end programs of one session
	returning              // the rules continue one session
)

// rule is a requirement for every driver whose agent has the features. Its name is unique. The
// suite checks the rules of a group in order.
type rule struct {
	name     string
	group    group
	features []runnerscripts.Feature // the features that it shows
	only     func(subject) bool      // whether it is for an agent, besides the features; nil is true
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
		{name: "a crash withdraws the permission request and the next prompt goes on", group: ending, check: crash},
		{name: "the end of the prompt's context ends the query and the next prompt goes on", group: ending, check: endOfPromptsContext},
		{name: "closing ends a running query and the program", group: ending, check: closeRunning},
		{name: "a new process remembers the conversation", group: returning, check: newProcess},
		{name: "a restored session remembers the conversation", group: returning, features: []runnerscripts.Feature{runnerscripts.FeatureResume}, check: restored},
		{name: "a budget ends the query", group: alone, features: []runnerscripts.Feature{runnerscripts.FeatureBudget}, check: budget},

		{name: "text arrives in pieces with all its white space", group: talking, check: pieces},
		{name: "two prompts share a process", group: talking, check: sharedProcess},
		{name: "the tokens of a query are its own", group: talking, features: []runnerscripts.Feature{runnerscripts.FeatureUsage}, check: usage},
		{name: "a query reports its cost", group: talking, features: []runnerscripts.Feature{runnerscripts.FeatureCost}, check: cost},
		{name: "thoughts are reported", group: talking, features: []runnerscripts.Feature{runnerscripts.FeatureThinking}, check: thoughts},
		{name: "a decision counts once", group: talking, features: []runnerscripts.Feature{permissions}, check: decisionCounts},
		{name: "a decision may name an option", group: talking, features: []runnerscripts.Feature{permissions}, check: decidedByOption},
		{name: "a file that is written is a diff", group: talking, check: writesAFile},
		{name: "a file that is changed is a diff", group: talking, check: editsAFile},
		{name: "a failed command shows its output", group: talking, check: failingCommand},
		{name: "two tools of one message are two calls", group: talking, check: twoTools},
		{name: "a subagent has a conversation of its own", group: talking, only: func(s subject) bool { return s.subagents }, check: subagent},
		{name: "a subagent asks for permission in its conversation", group: talking, features: []runnerscripts.Feature{permissions}, only: func(s subject) bool { return s.subagents }, check: subagentAsks},
		{name: "images reach the model", group: talking, features: []runnerscripts.Feature{runnerscripts.FeatureImages}, check: attached("picture.png", pngFile)},
		{name: "documents reach the model", group: talking, features: []runnerscripts.Feature{runnerscripts.FeaturePDF}, check: attached("paper.pdf", pdfFile)},
		{name: "text files reach the model", group: talking, features: []runnerscripts.Feature{runnerscripts.FeatureTextFiles}, check: attached("notes.txt", []byte("TEXT-OF-A-FILE"))},
		{name: "a failure of the API fails the query and the next prompt goes on", group: talking, check: failingAPI},
		// After these rules a transcript may lack a call or its input (see subject.forgets).
		{name: "a rejected tool does not run", group: talking, features: []runnerscripts.Feature{permissions}, check: rejected},
		{name: "the mode changes between prompts", group: talking, features: []runnerscripts.Feature{runnerscripts.FeaturePermissionMode, runnerscripts.FeatureSetMode}, check: changedMode},
		{name: "an interrupt withdraws the permission request of a command", group: talking, features: []runnerscripts.Feature{interrupt}, check: func(r *rig) { interruptWithdraws(r, "run-command `touch stopped`") }},
		{name: "an interrupt withdraws the permission request of a file", group: talking, features: []runnerscripts.Feature{interrupt}, check: func(r *rig) { interruptWithdraws(r, "write-file `stopped`") }},
		{name: "a rejection may interrupt the query", group: talking, features: []runnerscripts.Feature{permissions, interrupt}, check: rejectedAndInterrupted},
		{name: "an interrupt ends a running command", group: talking, features: []runnerscripts.Feature{permissions, interrupt}, check: interruptedCommand},
		{name: "an interrupt in the middle of an answer leaves the session usable", group: talking, features: []runnerscripts.Feature{interrupt}, check: interruptedAnswer},
		{name: "an interrupt right after the prompt is not lost", group: talking, features: []runnerscripts.Feature{interrupt}, check: earlyInterrupt},
		// These rules come last: their changes persist in the session, and the transcript of Claude Code
		// has the input that the model wanted, not the one that ran.
		{name: "another input of a tool runs or is refused", group: talking, features: []runnerscripts.Feature{permissions}, check: anotherInput},
		{name: "what is allowed for the session is not asked again", group: talking, features: []runnerscripts.Feature{runnerscripts.FeatureAllowAlways}, check: allowedAlways},
		{name: "the model changes between prompts", group: talking, features: []runnerscripts.Feature{runnerscripts.FeatureModel, runnerscripts.FeatureSetModel}, check: changedModel},
		{name: "the end of the context ends the program", group: talking, check: endOfContext},
	}, profileRules(), []rule{
		{name: "an API that cannot be reached is reported while the agent tries again", group: profiled, check: unreachable},
	})
}

// TestDrivers checks every rule with every agent, and compares the table of agents with the
// results.
func TestDrivers(t *testing.T) {
	table := newTable()
	t.Cleanup(func() { table.check(t) })
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for g, name := range map[group]string{talking: "talking", profiled: "profiled", ending: "ending", returning: "returning"} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					shared := newRig(t, s)
					for _, rule := range rules() {
						if rule.group == g && s.keeps(rule) {
							t.Run(rule.name, func(t *testing.T) { table.run(t, s, rule, func() { shared.in(t, rule.check) }) })
						}
					}
				})
			}
			for _, rule := range rules() {
				if rule.group == alone && s.keeps(rule) {
					t.Run(rule.name, func(t *testing.T) {
						t.Parallel()
						table.run(t, s, rule, func() { rule.check(newRig(t, s)) })
					})
				}
			}
		})
	}
}
