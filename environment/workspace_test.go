package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestWorkspaceFilesAreListedWithTheirContent(t *testing.T) {
	env := create(t, Config{})
	tree{
		"b/c.txt": "text", "a": "", "large": strings.Repeat("x", 100), "l": "-> a", "bin": "\x00\xff",
		".git/config": "1", "b/node_modules/x/y": "1",
	}.write(t, env.Primitive().Paths().Workspace)
	list := func(opts FilesOptions) string {
		files, err := env.WorkspaceFiles(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, f := range files {
			fmt.Fprintf(&b, "%s %d %q %s%s\n", f.Path, f.Size, f.Content, f.Target, f.Omitted)
		}
		return b.String()
	}
	want := "a 0 \"\" \nb/c.txt 4 \"text\" \nbin 2 \"\\x00\\xff\" \nl 0 \"\" a\nlarge 100 \"\" too_large\n"
	if got := list(FilesOptions{MaxContent: 50}); got != want {
		t.Errorf("files\n%s\nwant\n%s", got, want)
	}
	want = ".git/config 1 \"\" \na 0 \"\" \nb/c.txt 4 \"\" \nb/node_modules/x/y 1 \"\" \n"
	if got := list(FilesOptions{Ignore: []string{"bin", "l*"}}); got != want {
		t.Errorf("files\n%s\nwant\n%s", got, want)
	}
	if _, err := env.WorkspaceFiles(t.Context(), FilesOptions{Ignore: []string{"["}}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a bad pattern: %v, want fs.ErrInvalid", err)
	}
}

func TestWatchWorkspaceReportsWhatHappens(t *testing.T) {
	env := create(t, Config{})
	dir := env.Primitive().Paths().Workspace
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := env.WatchWorkspace(ctx, FilesOptions{MaxContent: 10})
	if err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) func() {
		return func() {
			if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
				t.Error(err)
			}
		}
	}
	// Each step waits for the event of the previous one.
	steps := []struct {
		do   func()
		want string
	}{
		{func() { tree{".git/ignored": "1", "text": "hi"}.write(t, dir) }, "file_created text 2 hi"},
		{func() { tree{"text": "ho!"}.replaceInPlace(t, dir) }, "file_modified text 3 ho!"},
		{func() { tree{"bin": "\x00"}.write(t, dir) }, "file_created bin 1 (binary)"},
		{func() { tree{"large": strings.Repeat("x", 11)}.write(t, dir) }, "file_created large 11 (too_large)"},
		{rename("text", "moved"), "file_renamed text moved"},
		{func() { _ = os.Remove(filepath.Join(dir, "moved")) }, "file_deleted moved"},
	}
	steps[0].do()
	i := 0
	for ev, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		change, err := runnerscripts.Payload[runnerscripts.FileChange](ev)
		if err != nil {
			t.Fatal(err)
		}
		got := describeChange(ev, change)
		if got != steps[i].want {
			t.Errorf("event %q, want %q", got, steps[i].want)
		}
		if ev.SessionID != env.SessionID() || ev.Source != runnerscripts.SourceEnvironment || ev.Time.IsZero() {
			t.Errorf("the event is not filled in: %+v", ev)
		}
		if i++; i == len(steps) {
			break
		}
		steps[i].do()
	}
}

func describeChange(ev runnerscripts.Event, c runnerscripts.FileChange) string {
	switch {
	case c.From != "":
		return fmt.Sprintf("%s %s %s", ev.Type, c.From, c.Path)
	case ev.Type == runnerscripts.TypeFileDeleted:
		return fmt.Sprintf("%s %s", ev.Type, c.Path)
	case c.Content != nil:
		return fmt.Sprintf("%s %s %d %s", ev.Type, c.Path, c.Size, *c.Content)
	}
	return fmt.Sprintf("%s %s %d (%s)", ev.Type, c.Path, c.Size, c.Omitted)
}

func TestAWatchEndsWithItsContextAndWithTheEnvironment(t *testing.T) {
	env := create(t, Config{Agent: Agent{Name: "script"}})
	ctx, cancel := context.WithCancel(t.Context())
	byContext, err := env.WatchWorkspace(ctx, FilesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for _, err := range byContext {
		t.Errorf("after the context: %v", err)
	}
	byClose, err := env.WatchWorkspace(t.Context(), FilesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	transcript, err := env.WatchTranscript(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range byClose {
		t.Errorf("after Close: %v", err)
	}
	for _, err := range transcript {
		t.Errorf("after Close: %v", err)
	}
	if _, err := env.WatchWorkspace(t.Context(), FilesOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("a watch after Close: %v, want ErrClosed", err)
	}
}

func TestWatchTranscriptReportsEachNewOne(t *testing.T) {
	env := create(t, Config{Agent: scenario(t, turn(runnerscripts.ScenarioStep{Text: "said in turn {{turn}}"}))})
	if _, err := env.PrepareSession(t.Context(), Setup{}); err != nil {
		t.Fatal(err)
	}
	events, err := env.WatchTranscript(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func() {
		if _, err := collect(t.Context(), env, Query{Prompt: "x"}); err != nil {
			t.Error(err)
		}
	}
	ask()
	turns := 1
	for ev, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		change, err := runnerscripts.Payload[runnerscripts.TranscriptChanged](ev)
		if err != nil || ev.Type != runnerscripts.TypeTranscriptChanged {
			t.Fatalf("%s: %v", ev.Type, err)
		}
		if change.Size != int64(len(change.Transcript.Main)) || !strings.Contains(change.Transcript.Main, fmt.Sprintf("said in turn %d", turns)) {
			t.Fatalf("the transcript of turn %d: %s", turns, change.Transcript.Main)
		}
		if turns++; turns == 3 {
			break
		}
		ask()
	}
	if turns != 3 {
		t.Errorf("the watch ended after %d turns", turns-1)
	}
}

func TestAnEmptyFileHasContentInJSONToo(t *testing.T) {
	for name, content := range map[string][]byte{`"content":""`: {}, "no": nil} {
		data, err := json.Marshal(WorkspaceFile{Content: content})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(data), `"content":""`); got != (content != nil) {
			t.Errorf("%s content: %s", name, data)
		}
	}
}
