package docker_test

import (
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
)

func TestMain(m *testing.M) { os.Exit(testdocker.Main(m)) }
