package docker_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
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
	if err := leaked(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// leaked returns an error for the goroutines that are left. On a busy machine ending goroutines
// need longer than goleak waits.
func leaked() error {
	for end := time.Now().Add(time.Minute); ; {
		if err := goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
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
