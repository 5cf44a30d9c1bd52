package docker_test

import (
	"fmt"
	"os"
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
	code := testdocker.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
