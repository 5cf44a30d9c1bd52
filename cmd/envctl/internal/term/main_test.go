package term

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }
