package kept

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/internal/statedir"
)

// remembered returns a log whose sandbox has a record.
func remembered(t *testing.T, typ, id, agent string) *Log {
	t.Helper()
	l := NewLog(Record{Type: typ, ID: id, Agent: agent})
	if err := l.Begin(func(r *Record) { r.Made = json.RawMessage(`{"by":"` + agent + `"}`) }); err != nil {
		t.Fatal(err)
	}
	return l
}

// folder makes a new state folder and returns that of the records.
func folder(t *testing.T) string {
	t.Helper()
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	return filepath.Join(state, "agentenv", "records")
}

func load(t *testing.T, typ, id string) (*Record, error) {
	t.Helper()
	s, err := Open()
	if err != nil {
		return nil, err
	}
	r, err := s.Load(typ, id)
	if cerr := s.Close(); cerr != nil {
		t.Error(cerr)
	}
	return r, err
}

func TestWhatIsRememberedIsBoundedAndPrivate(t *testing.T) {
	dir := folder(t)
	first := remembered(t, "local", "a", "claude")
	remembered(t, "local", "b", "claude")
	if err := first.Store(func(r *Record) { r.Name = "old" }); err != nil {
		t.Fatal(err)
	}
	// A later sandbox with the same ID has nothing of the earlier one.
	remembered(t, "local", "a", "codex")
	if r, err := load(t, "local", "a"); err != nil || r == nil || r.Agent != "codex" || r.Name != "" || !strings.Contains(string(r.Made), "codex") {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := load(t, "docker", "a"); err != nil || r != nil {
		t.Errorf("of another type: %+v, %v", r, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := statedir.Prune(root, 1, 1<<40); err != nil {
		t.Error(err)
	}
	if r, err := load(t, "local", "b"); err != nil || r != nil {
		t.Errorf("the oldest: %+v, %v", r, err)
	}
	for _, name := range []string{filepath.Join(dir, fileOf("local", "a")), dir} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %v, %v", name, info.Mode(), err)
		}
		if err := os.Chmod(name, 0o755); err != nil {
			t.Fatal(err)
		}
		if r, err := load(t, "local", "a"); !errors.Is(err, fs.ErrPermission) || r != nil {
			t.Errorf("%s that others can read: %+v, %v", name, r, err)
		}
		if err := first.Store(func(r *Record) { r.Made = nil }); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s that others can read was changed: %v", name, err)
		}
		if err := os.Chmod(name, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := load(t, "local", "a"); err != nil || r == nil || r.Made == nil {
		t.Errorf("afterwards it is %+v, %v", r, err)
	}
	Forget("local", "a")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// One program notes a query while another changes what the sandbox may reach.
func TestProgramsDoNotUndoEachOthersChanges(t *testing.T) {
	folder(t)
	const each = 25
	one := remembered(t, "local", "a", "claude")
	other := NewLog(Record{Type: "local", ID: "a"})
	var all sync.WaitGroup
	for range each {
		all.Go(func() { one.Note(func(r *Record) { r.Usage.InputTokens++ }) })
		all.Go(func() {
			other.Note(func(r *Record) {
				var n int
				_ = json.Unmarshal(r.Made, &n)
				r.Made = json.RawMessage(strconv.Itoa(n + 1))
			})
		})
	}
	all.Wait()
	if r := Find("local", "a"); r == nil || r.Usage.InputTokens != each || string(r.Made) != strconv.Itoa(each) {
		t.Errorf("%d changes by each of two left %+v", each, r)
	}
}

func TestWhatHasEndedIsNotRememberedAgain(t *testing.T) {
	folder(t)
	l := remembered(t, "local", "a", "claude")
	Forget("local", "a")
	l.Note(func(r *Record) { r.Agent = "claude" })
	MarkEnding("local", "a")
	if r, err := load(t, "local", "a"); r != nil || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	// But what this machine has not known yet is remembered from its first note.
	found := NewLog(Record{Type: "local", ID: "b", Kept: true})
	found.Note(func(r *Record) { r.Agent = "codex" })
	if r, err := load(t, "local", "b"); err != nil || r == nil || !r.Kept || r.Agent != "codex" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestANameIsOfOneLiveSandbox(t *testing.T) {
	folder(t)
	alive := map[string]bool{"a": true}
	lives := func(_ context.Context, typ, id string) (bool, error) { return alive[id], nil }
	a, b := remembered(t, "local", "a", ""), remembered(t, "local", "b", "")
	if err := a.SetName(t.Context(), "n", lives); err != nil {
		t.Fatal(err)
	}
	if err := b.SetName(t.Context(), "n", lives); !errors.Is(err, configfile.ErrInvalid) || !strings.Contains(err.Error(), "the sandbox a has") {
		t.Errorf("a name that is taken: %v", err)
	}
	if id := IDOf("local", "n"); id != "a" || IDOf("docker", "n") != "" || IDOf("local", "") != "" {
		t.Errorf("the name is of %q", id)
	}
	unsure := func(context.Context, string, string) (bool, error) { return false, errors.New("no answer") }
	if err := b.SetName(t.Context(), "n", unsure); !errors.Is(err, configfile.ErrInvalid) {
		t.Errorf("a name whose sandbox does not answer: %v", err)
	}
	alive["a"] = false
	if err := b.SetName(t.Context(), "n", lives); err != nil || IDOf("local", "n") != "b" || b.Name() != "n" {
		t.Errorf("the name of a sandbox that is gone: %v; it is of %q", err, IDOf("local", "n"))
	}
}

func TestTheTwoFilesOfOlderReleasesAreRead(t *testing.T) {
	dir := folder(t)
	state := filepath.Dir(dir)
	write := func(folder, id, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(state, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(state, folder, fileOf("local", id)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("activity", "a", `{"type":"local","id":"a","name":"mine","agent":"claude","kept":true}`)
	write("sandboxes", "a", `{"session_id":"s","agent":{"name":"claude"}}`)
	write("activity", "b", `{"type":"local","id":"b","agent":"codex"}`)
	write("activity", "c", `{"type":"loc`)
	if r, err := load(t, "local", "a"); err != nil || r == nil || r.Name != "mine" || r.Agent != "claude" || !r.Kept || string(r.Made) != `{"session_id":"s","agent":{"name":"claude"}}` {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := load(t, "local", "b"); err != nil || r == nil || r.Agent != "codex" || r.Made != nil {
		t.Errorf("without the second file: %+v, %v", r, err)
	}
	for _, old := range []string{"activity", "sandboxes"} {
		if _, err := os.Stat(filepath.Join(state, old)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", old, err)
		}
	}
}
