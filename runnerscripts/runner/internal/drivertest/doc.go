// Package drivertest holds the contract suite of the drivers of agents: rules that every
// driver keeps, each tried with the real program of every agent and a scripted model. All of
// it is in the tests of this package. A rule of one agent alone is tested beside its driver.
//
// A rule names the features that it shows, and is tried with the agents that have them. The
// table in docs/agents.md is what that has shown; go test with -update writes it.
package drivertest
