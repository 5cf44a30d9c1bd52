// Package testneed checks the prerequisites of tests. It is for tests only.
package testneed

import (
	"os"
	"testing"
)

// NoSkip is the variable that CI sets to run all tests: there, a test without its prerequisites
// fails instead of being skipped.
const NoSkip = "AGENTENV_TEST_NO_SKIP"

// Require skips a test unless met is true. With NoSkip or CI set, the test fails instead.
// instruction says how to fix it.
func Require(t testing.TB, met bool, instruction string) {
	t.Helper()
	switch {
	case met:
	case os.Getenv(NoSkip) != "" || os.Getenv("CI") != "":
		t.Fatal(instruction)
	default:
		t.Skip(instruction)
	}
}

// Root skips or fails a test, like Require, unless it runs as root.
func Root(t testing.TB, why string) {
	t.Helper()
	Require(t, os.Geteuid() == 0, "run this as root: "+why)
}
