package session

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestCheckpointsLeaveOutWhatIsIgnored(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(write("a", "kept"), write("node_modules/x/f", "left out"), write("src/node_modules/g", "left out")), steps(say("on")))
	cfg.Environment.Checkpoints.Ignore = []string{"node_modules"}
	s := start(t, cfg)
	converse(t, s, "a")
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	converse(t, s, "b")
	for name, want := range map[string]bool{"a": true, "node_modules/x/f": false, "src/node_modules/g": false} {
		if _, ok := written(t, s, name); ok != want {
			t.Errorf("%s is there: %t", name, ok)
		}
	}
}

// The files of a checkpoint never stop a query: without room for them the checkpoint has none.
func TestACheckpointWithoutRoomForItsFilesEndsNothing(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(run("sh", "-c", "head -c 200000 /dev/urandom >big")), steps(say("on")))
	cfg.MaxSessionSize = 100_000
	s := start(t, cfg)
	converse(t, s, "a")
	info := payload[runnerscripts.ErrorInfo](t, await(t, s, runnerscripts.TypeError))
	if !strings.Contains(info.Message, "has no room") || !strings.Contains(info.Message, `"big"`) {
		t.Errorf("error event %+v", info)
	}
	if answer := converse(t, s, "b"); answer != "on" {
		t.Errorf("the next prompt is answered with %q", answer)
	}
}

// Nor does the size of a query bound them.
func TestTheFilesOfACheckpointAreNotOfTheQuery(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(run("sh", "-c", "head -c 200000 /dev/urandom >big"), say("done")))
	cfg.MaxQuerySize = 100_000
	s := start(t, cfg)
	if answer := converse(t, s, "a"); answer != "done" {
		t.Errorf("answered with %q", answer)
	}
	if c := s.head(); c.Stale != "" || c.Files != 1 || c.Stored < 200_000 {
		t.Errorf("checkpoint %+v", c)
	}
}

// A workspace is read once: what is placed is not read back, and the first checkpoint has what was placed.
func TestWhatIsPlacedIsStoredOnceWithTheSession(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "f"), []byte(strings.Repeat("0123456789", 10_000)), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := scripted(t, steps(write("g", "new")), steps(say("on")))
	cfg.Store = store.NewMemory()
	cfg.Environment.Workspace = []environment.Source{{Folder: &environment.Folder{Path: folder}}}
	s := start(t, cfg)
	converse(t, s, "a")
	st, err := s.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Checkpoints) != 2 {
		t.Fatalf("checkpoints %+v", st.Checkpoints)
	}
	if live := s.live(); live.states == nil || live.states != live.States() {
		t.Error("the session does not go on with what the environment knows")
	}
	first, second := st.Checkpoints[0], st.Checkpoints[1]
	if first.Files != 1 || first.Bytes != 100_000 || first.Stored < 100_000 || first.Stored > 101_000 {
		t.Errorf("the first checkpoint is %+v", first)
	}
	if second.Files != 2 || second.Stored > 1000 {
		t.Errorf("the second checkpoint is %+v", second)
	}
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	converse(t, s, "b")
	if st, err = s.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	if last := st.Checkpoints[len(st.Checkpoints)-1]; last.Files != 2 || last.Stored > 1000 || last.Workspace != second.Workspace {
		t.Errorf("a new sandbox begins with %+v", last)
	}
}
