// Package drivertest holds the contract suite of the agent drivers: rules that every driver must
// keep. The suite checks each rule with the real program of every agent and a scripted model. It is
// in the tests of this package. The rules of a single agent are tested beside its driver, with a
// [Fixture].
//
// A rule names the features that it shows. The suite checks it with the agents that have these
// features. The table in docs/agents.md holds the results; go test with -update writes it.
package drivertest
