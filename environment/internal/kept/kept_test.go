package kept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/internal/flock"
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
	if err := first.Change(func(r *Record) { r.Name = "old" }); err != nil {
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
		if err := first.Change(func(r *Record) { r.Made = nil }); !errors.Is(err, fs.ErrPermission) {
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
func TestChangesAreNotUndoneByOthers(t *testing.T) {
	folder(t)
	const each = 25
	one := remembered(t, "local", "a", "claude")
	other, _, err := Resume(Record{Type: "local", ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
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
	if r, err := Find("local", "a"); err != nil || r.Usage.InputTokens != each || string(r.Made) != strconv.Itoa(each) {
		t.Errorf("%d changes by each of two: %+v, %v", each, r, err)
	}
}

// Another program holds the lock while it changes the record.
func TestAChangeWaitsForThatOfAnotherProgram(t *testing.T) {
	dir := folder(t)
	l := remembered(t, "local", "a", "claude")
	unlocks := make([]func(), locks)
	for i := range unlocks {
		var err error
		if unlocks[i], err = flock.LockWithin(filepath.Join(filepath.Dir(dir), "locks", fmt.Sprintf("records-%02x", i)), lockTimeout); err != nil {
			t.Fatal(err)
		}
	}
	lockTimeout = time.Millisecond
	defer func() { lockTimeout = time.Second }()
	if err := l.Change(func(r *Record) { r.Agent = "codex" }); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a change during another: %v", err)
	}
	Forget("local", "a")
	for _, unlock := range unlocks {
		unlock()
	}
	if r, err := Find("local", "a"); err != nil || r.Agent != "claude" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWhatHasEndedIsNotRememberedAgain(t *testing.T) {
	folder(t)
	l := remembered(t, "local", "a", "claude")
	attached, _, err := Resume(Record{Type: "local", ID: "a", Kept: true})
	if err != nil {
		t.Fatal(err)
	}
	Forget("local", "a")
	for _, l := range []*Log{l, attached} {
		if err := l.Change(func(r *Record) { r.Agent = "claude" }); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a change of what was forgotten: %v", err)
		}
	}
	MarkEnding("local", "a")
	if r, err := load(t, "local", "a"); r != nil || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	// But what this machine has not known yet is remembered from its first note.
	found, before, err := Resume(Record{Type: "local", ID: "b", Kept: true})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown sandbox: %v, want ErrNotExist", err)
	}
	found.Note(func(r *Record) { r.Agent = "codex" })
	if r, err := load(t, "local", "b"); before != nil || err != nil || r == nil || !r.Kept || r.Agent != "codex" {
		t.Errorf("%+v, %v; before %+v", r, err, before)
	}
}

func TestADamagedRecordIsReplacedByThatOfANewSandbox(t *testing.T) {
	dir := folder(t)
	l := remembered(t, "local", "a", "claude")
	if err := os.WriteFile(filepath.Join(dir, fileOf("local", "a")), []byte(`{"type":"loc`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Change(func(*Record) {}); !errors.Is(err, ErrDamaged) {
		t.Errorf("a change of a damaged record: %v", err)
	}
	remembered(t, "local", "a", "codex")
	if r, err := Find("local", "a"); err != nil || r.Agent != "codex" {
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
	// It may be on an engine that was not asked.
	if r, err := load(t, "local", "a"); err != nil || r == nil || r.Name != "" || r.Made == nil {
		t.Errorf("what is known of that sandbox is %+v, %v", r, err)
	}
}
