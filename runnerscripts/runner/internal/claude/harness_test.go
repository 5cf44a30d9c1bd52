package claude

import (
	"path/filepath"
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
	testleak.Main(m)
}

// fixture is a session of the real Claude Code with a scripted model.
type fixture struct{ *drivertest.Fixture }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{drivertest.New(t, Driver{}, programName)}
	f.StartModel()
	f.Session.Agent.Command = []string{testagents.Claude(t)}
	f.Session.Agent.Env = map[string]string{
		"ANTHROPIC_BASE_URL":      f.API.URL,
		"ANTHROPIC_API_KEY":       "test-key",
		"CLAUDE_CODE_MAX_RETRIES": "1",
	}
	return f
}

// homeFile returns the path of a file in the session's home.
func (f *fixture) homeFile(name string) string { return filepath.Join(f.Session.Paths.Home, name) }

// nothingAsked fails the test if there was a permission request.
func (f *fixture) nothingAsked() {
	f.Helper()
	for _, r := range f.Requests() {
		f.Errorf("asked for %s", r.ToolCall.Title)
	}
}

// logs returns the messages of the logs of that level.
func (f *fixture) logs(level string) []string {
	var list []string
	for _, l := range agenttest.Payloads[runnerscripts.Log](f, f.Out.All(), runnerscripts.TypeLog) {
		if l.Level == level {
			list = append(list, l.Message)
		}
	}
	return list
}
