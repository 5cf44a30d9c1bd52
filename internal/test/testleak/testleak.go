// Package testleak finds goroutines that the tests of a package have left.
package testleak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a goroutine may need to end: a busy machine stands still, and net/http holds some connections for half a
// second before it closes them. That is longer than goleak waits.
var patience = time.Minute

// Main runs the tests of a package and ends the program. Goroutines that are left are a failure.
func Main(m *testing.M) { Exit(m.Run()) }

// Exit ends the program with the exit status of tests, or with 1 for goroutines that are left.
func Exit(code int) {
	if code == 0 {
		if err := Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code) //nolint:forbidigo // this is the tests' main
}

// Find returns an error for the goroutines that are left.
func Find() error {
	for end := time.Now().Add(patience); ; {
		if err := goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
