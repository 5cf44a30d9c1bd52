package gemini

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/drivertest"
)

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	if dir, ok := os.LookupEnv(replayVariable); ok {
		if err := runReplay(os.Stdin, os.Stdout, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testleak.Main(m)
}

const testModel = "gemini-2.5-pro"

// fixture is a session of the real Gemini CLI with a scripted model.
type fixture struct{ *drivertest.Fixture }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{drivertest.New(t, Driver{}, programName)}
	f.StartModel()
	f.Session.Agent.Command = []string{testagents.Gemini(t)}
	f.Session.Agent.Model = testModel
	f.Session.Agent.Env = map[string]string{
		"GOOGLE_GEMINI_BASE_URL": f.API.URL,
		"GEMINI_API_KEY":         "test-key",
	}
	return f
}

// lastCall returns the last tool call.
func (f *fixture) lastCall() runnerscripts.ToolCall {
	f.Helper()
	for _, b := range slices.Backward(agenttest.Fold(f, f.Out.All()).Blocks) {
		if b.Tool != nil {
			return *b.Tool
		}
	}
	f.Fatal("no tool was called")
	return runnerscripts.ToolCall{}
}
