package modal_test

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/testmodal"
)

func TestMain(m *testing.M) { testmodal.Main(m) }
