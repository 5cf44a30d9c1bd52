package docker_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(crashVariable); config != "" {
		os.Exit(runToCrash(config))
	}
	if host := os.Getenv(nobodyVariable); host != "" {
		os.Exit(listAsNobody(host))
	}
	moreAtOnce()
	code := testdocker.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// moreAtOnce has tests wait for the engine together, which they do most of the time,
// unless somebody has said how many are to run at once.
func moreAtOnce() {
	flag.Parse()
	if n := flag.Lookup("test.parallel"); n.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := n.Value.Set("8"); err != nil {
			panic(err)
		}
	}
}
