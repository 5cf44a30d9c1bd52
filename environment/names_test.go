package environment

import (
	"encoding/json"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// JSON replaces what is not UTF-8, so that two files may have one name there.
func TestNamesThatAreNotUTF8SurviveJSON(t *testing.T) {
	env := create(t, Config{Sandbox: sandbox(t)})
	put(t, env, "a\xffb", "1\n")
	put(t, env, "a\xfeb", "1\n")
	put(t, env, "aéb", "1\n")
	list, err := env.Changes(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	for i, want := range []string{"aéb", "a\xfeb", "a\xffb"} {
		data, err := json.Marshal(list[i])
		if err != nil {
			t.Fatal(err)
		}
		var c Change
		if err := json.Unmarshal(data, &c); err != nil || c.Path != want || list[i].Path != want || (c.PathBytes == nil) != (i == 0) {
			t.Errorf("%s is %q, %v", data, c.Path, err)
		}
	}
	events, err := env.WatchWorkspace(t.Context(), FilesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.Exec(t.Context(), "sh", "-c", `mv "$(printf 'a\377b')" "$(printf 'new\375')"`); err != nil {
		t.Fatal(err)
	}
	for ev, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		var read runnerscripts.Event
		if err := json.Unmarshal(data, &read); err != nil {
			t.Fatal(err)
		}
		c, ok := read.Value().(*runnerscripts.FileChange)
		if !ok || c.Path != "new\xfd" || c.From != "a\xffb" {
			t.Errorf("%s is %+v", data, c)
		}
		break
	}
}
