package docker_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(crashVariable); config != "" {
		os.Exit(runToCrash(config))
	}
	if host := os.Getenv(nobodyVariable); host != "" {
		os.Exit(listAsNobody(host))
	}
	moreAtOnce()
	testleak.Exit(testdocker.Main(m))
}

// moreAtOnce runs more tests at once: they mostly wait for the engine. The flag -test.parallel
// overrides it.
func moreAtOnce() {
	flag.Parse()
	if n := flag.Lookup("test.parallel"); n.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := n.Value.Set("8"); err != nil {
			panic(err)
		}
	}
}
