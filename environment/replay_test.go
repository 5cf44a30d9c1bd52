package environment

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// changing matches what differs between the events of two equal sessions. OpenCode offers the
// models that it has heard of at the time.
var changing = regexp.MustCompile(`1[6-9]\d{8,}|[0-9a-f]{8}-[0-9a-f-]{27}|\b(ses|msg|prt)_\w+|"duration_ms":\d+|"cost_usd":[\d.e-]+|20\d\d-\d\d-\d\dT[\d:.]+Z?|\b\d+\.\d+ seconds|Chunk ID: \w+|process_id":"?\d+|"models":\[[^\]]*\]`)

// same returns the events in a form that is equal in every replay of a session.
func same(events []runnerscripts.Event, paths primitives.Paths) []string {
	lines := make([]string, 0, len(events))
	for _, ev := range events {
		if ev.Type == runnerscripts.TypeLog || ev.Type == runnerscripts.TypeUsageUpdate {
			continue // warnings and numbers that depend on the machine
		}
		payload := strings.ReplaceAll(string(ev.Payload), paths.Workspace, "WORKSPACE")
		payload = strings.ReplaceAll(strings.ReplaceAll(payload, paths.Home, "HOME"), paths.Session, "SESSION")
		lines = append(lines, string(ev.Type)+" "+changing.ReplaceAllString(payload, "~"))
	}
	return lines
}

// replays checks that an agent repeats the recorded session of twoCalls without a key or a model.
func replays(t *testing.T, cfg Config, file, token string, recorded []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil || bytes.Contains(data, []byte(hostKey)) || bytes.Contains(data, []byte(token)) || bytes.Count(data, []byte("\n")) < 3 {
		t.Fatalf("the recording has the key or the token, or too little: %v: %.2000s", err, data)
	}
	cfg.Credentials, cfg.Replay = nil, file
	env := create(t, cfg)
	events, err := collect(t.Context(), env, Query{Prompt: twoCalls})
	if err != nil {
		t.Fatal(err)
	}
	replayed := same(events, env.Primitive().Paths())
	if got, want := strings.Join(replayed, "\n"), strings.Join(recorded, "\n"); got != want {
		t.Errorf("the replay has\n%s\nand the session had\n%s", got, want)
	}
	if _, err := primitives.ReadFile(t.Context(), env.Primitive(), "notes.txt", 1<<10); err != nil {
		t.Error(err)
	}
	_, err = collect(t.Context(), env, Query{Prompt: "please plain-text"})
	missing, ok := errors.AsType[*NoMatchError](err)
	if !ok || missing.Nearest == "" || !strings.Contains(missing.Error(), "nearest") {
		t.Errorf("a prompt that was not recorded: %v", err)
	}
}

func TestRecordingsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	if err := errors.Join(os.Symlink("victim", filepath.Join(dir, "link")), os.Symlink(write("rc", "hello"), filepath.Join(dir, "other-link"))); err != nil {
		t.Fatal(err)
	}
	keyed := map[string]Credential{"anthropic": {Env: "TEST_HOST_KEY"}}
	for want, cfg := range map[string]Config{
		"link: not a regular file":       {Record: filepath.Join(dir, "link"), Credentials: keyed},
		"other-link: not a regular file": {Record: filepath.Join(dir, "other-link"), Credentials: keyed},
		"rc: replay":                     {Record: filepath.Join(dir, "rc"), Credentials: keyed},
		"is a directory":                 {Record: dir, Credentials: keyed},
		"no such file":                   {Replay: filepath.Join(dir, "none")},
		"is no recording":                {Replay: write("other", "hello\n")},
		"has version 99":                 {Replay: write("new", `{"format":"agentenv-replay","version":99}`+"\n")},
		"leave one out":                  {Replay: write("both", ""), Record: write("both", "")},
		"give creden":                    {Record: write("alone", "")},
	} {
		cfg.Sandbox, cfg.Agent = sandbox(t), Agent{Name: "script"}
		if _, err := Create(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "victim")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made behind the link: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "rc")); err != nil || string(data) != "hello" {
		t.Errorf("a file has %q, %v", data, err)
	}
}
