package codex

import (
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// move gives the session other folders and restores the transcript there, as in another sandbox.
func (f *fixture) move(tr runnerscripts.Transcript) {
	f.Helper()
	f.Session.Paths = agenttest.NewSession(f, f.Session.SessionID, agentName).Paths
	f.Out = agenttest.NewRecorder()
	for range 2 { // Setup may be called again
		data, err := Driver{}.Setup(f.Context(), runnerscripts.SetupRequest{Session: f.Session, Transcript: &tr})
		if err != nil || data.AgentVersion != testedVersion {
			f.Fatalf("setup: %+v, %v", data, err)
		}
	}
}

func TestForkGoesOnApartFromTheSessionItCameFrom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.Prompt(c, "common plain-text")
	common, _ := f.Transcript()

	second := *f.Fixture
	fork := &fixture{&second}
	fork.Session.SessionID = agent.NewUUID()
	fork.move(common)
	fc := fork.start()
	fork.Prompt(fc, "of the fork plain-text")
	f.Prompt(c, "of the first plain-text")
	fork.Prompt(fc, "remember")
	if got := fork.LastRequest().Texts; len(got) != 3 || got[1] != "of the fork plain-text" {
		t.Errorf("the fork's model was sent %q", got)
	}
	f.Prompt(c, "remember")
	if got := f.LastRequest().Texts; len(got) != 3 || got[1] != "of the first plain-text" {
		t.Errorf("the first's model was sent %q", got)
	}
}

// The databases beside the rollouts are only indexes. They must not restore prompts that the
// restored transcript does not have.
func TestOlderTranscriptTakesThePlaceOfANewerOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.Prompt(c, "first plain-text")
	older, _ := f.Transcript()
	f.Prompt(c, "second plain-text")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := (Driver{}).Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session, Transcript: &older}); err != nil {
		t.Fatal(err)
	}
	f.Prompt(f.start(), "remember")
	if got := f.LastRequest().Texts; len(got) != 2 || got[0] != "first plain-text" {
		t.Errorf("the model was sent %q", got)
	}
}

func TestFileTruncatedByACrashDoesNotBreakTheSession(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end   func(transcript string) string // the file after a crash
		texts int                            // number of texts in the next request to the model
	}{
		"empty":       {func(string) string { return "" }, 1},
		"half a line": {func(s string) string { return s + `{"timestamp":"2026-01-01T00:00:00.000Z","type":"resp` }, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.start()
			f.Prompt(c, "plain-text")
			thread := c.(*conversation).threadID()
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			before, _ := f.Transcript()
			file, err := findRollout(f.Session, thread)
			if err != nil || file == "" {
				t.Fatalf("no rollout: %v", err)
			}
			agenttest.WriteFile(t, file, tt.end(before.Main))
			f.Prompt(f.start(), "remember")
			if got := f.LastRequest().Texts; len(got) != tt.texts {
				t.Errorf("the model was sent %q", got)
			}
			after, events := f.Transcript()
			if tt.texts > 1 && !strings.HasPrefix(after.Main, before.Main) {
				t.Error("the transcript was lost")
			}
			if users := agenttest.Payloads[runnerscripts.ContentChunk](t, events.All(), runnerscripts.TypeUserMessage); len(users) != tt.texts {
				t.Errorf("prompts in the transcript: %v", users)
			}
		})
	}
}

func TestRawLinesComeOnRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Raw = true
	c := f.Start()
	f.Prompt(c, "plain-text")
	var methods []string
	for _, m := range agenttest.Payloads[jsonrpc.Message](t, f.Out.All(), runnerscripts.TypeRaw) {
		methods = append(methods, m.Method)
	}
	if all := strings.Join(methods, " "); methods[0] != "" || !strings.Contains(all, "turn/completed") {
		t.Errorf("raw lines: %s", all)
	}
}

func TestNoTranscriptYetIsAnEmptyOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, started := range []bool{false, true} {
		if started {
			f.start()
		}
		tr, out := f.Transcript()
		if tr.Main != "" || tr.Subagents != nil || len(out.All()) != 0 {
			t.Errorf("started %v: %+v, events:\n%s", started, tr, agenttest.Describe(out.All()))
		}
	}
}

func TestNothingIsWrittenIntoTheUsersFolders(t *testing.T) {
	// The session has its own folders, so the user's must stay empty.
	t.Setenv("CODEX_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	f := newFixture(t)
	f.Prompt(f.start(), "plain-text")
	for _, dir := range []string{os.Getenv("CODEX_HOME"), os.Getenv("HOME")} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("in a folder that is not the session's: %v, %v", entries, err)
		}
	}
}
