// Package testneed says what tests need of the machine that they run on. It is for tests
// only.
package testneed

import (
	"os"
	"testing"
)

// NoSkip is the variable by which CI asks for everything: a test that lacks something
// fails there, and is skipped elsewhere.
const NoSkip = "AGENTENV_TEST_NO_SKIP"

// Require ends a test unless met. instruction says what to do about it.
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

// Root ends a test unless root runs it.
func Root(t testing.TB, why string) {
	t.Helper()
	Require(t, os.Geteuid() == 0, "run this as root: "+why)
}
