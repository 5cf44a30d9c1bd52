package session

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestTheFilesOfTheWorkspaceCanBeListedReadAndWritten(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(write("a.txt", "by the agent"))))
	converse(t, s, "a")
	if err := s.WriteFile(t.Context(), "b.txt", strings.NewReader("by the user"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	files, err := s.Files(t.Context(), environment.FilesOptions{MaxContent: 100})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range files {
		got[f.Path] = string(f.Content)
	}
	if len(got) != 2 || got["a.txt"] != "by the agent" || got["b.txt"] != "by the user" {
		t.Errorf("files %v", got)
	}
	if got, _ := written(t, s, "b.txt"); got != "by the user" {
		t.Errorf("b.txt holds %q", got)
	}
}

func TestChangesInTheWorkspaceBecomeEvents(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(write("a.txt", "text")))
	cfg.WatchWorkspace = &environment.FilesOptions{MaxContent: 100}
	s := start(t, cfg)
	prompt(t, s, "a")
	change := payload[runnerscripts.FileChange](t, await(t, s, runnerscripts.TypeFileCreated))
	if change.Path != "a.txt" {
		t.Errorf("change %+v", change)
	}
}
