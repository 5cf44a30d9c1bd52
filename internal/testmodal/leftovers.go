package testmodal

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// dirPrefix begins the name of the directory of each server.
const dirPrefix = "testmodal-"

// Main runs a package's tests and then fails them if a server of theirs has left
// something: goroutines, or directories with this process's mark.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err) //nolint:forbidigo // this is the tests' main
			code = 1
		}
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+fmt.Sprint(os.Getpid())+"-*")); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left by the tests:", left) //nolint:forbidigo // this is the tests' main
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // this is the tests' main
}
