package answers

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/statedir"
)

func TestAnAnswerHoldsInItsPlace(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	at := Place{User: "ann", Project: "/p", Agent: "claude", Isolation: "full"}
	for _, allow := range []bool{false, true} { // the second one replaces the first
		if err := Add(Answer{Place: at, Key: "k", Call: strings.Repeat("x", 2*maxCall), Allow: allow, By: "ann"}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := List()
	if err != nil || len(list) != 1 || list[0].Time.IsZero() || len(list[0].Call) > maxCall+3 {
		t.Fatalf("stored: %+v, %v", list, err)
	}
	if a, ok, err := Find(at, "k"); !ok || !a.Allow || a.By != "ann" || err != nil {
		t.Errorf("found %+v, %v, %v", a, ok, err)
	}
	for name, other := range map[string]Place{
		"user": {"", "/p", "claude", "full"}, "project": {"ann", "/q", "claude", "full"}, "agent": {"ann", "/p", "codex", "full"}, "isolation": {"ann", "/p", "claude", "none"},
	} {
		if _, ok, err := Find(other, "k"); ok || err != nil {
			t.Errorf("it holds for another %s, %v", name, err)
		}
	}
	if _, ok, _ := Find(at, "other"); ok {
		t.Error("it holds for another call")
	}
	if err := Remove(list[0].ID, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown one is removed: %v", err)
	}
	if err := Remove(list[0].ID); err != nil {
		t.Error(err)
	}
	if _, ok, err := Find(at, "k"); ok || err != nil {
		t.Errorf("it holds after it was removed, %v", err)
	}
}

func TestAFileThatCannotBeTrusted(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	state, err := statedir.Path()
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(Answer{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(state, "permissions", "answers.json")
	for what, change := range map[string]func() error{
		"a later version": func() error { return os.WriteFile(name, []byte(`{"version":2,"answers":[{"key":"k"}]}`), 0o600) },
		"no JSON":         func() error { return os.WriteFile(name, []byte(`{`), 0o600) },
		"others read it":  func() error { return os.Chmod(name, 0o644) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, ok, err := Find(Place{}, "k")
		if ok || err == nil || Add(Answer{Key: "k"}) == nil {
			t.Errorf("%s: found %v, %v", what, ok, err)
		}
		if err := os.Chmod(name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnswersAtOnce(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var all sync.WaitGroup
	for _, key := range []string{"a", "b", "c", "d"} {
		all.Go(func() {
			if err := Add(Answer{Key: key}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if list, err := List(); err != nil || len(list) != 4 {
		t.Errorf("%d are stored, %v", len(list), err)
	}
}

func TestSoManyAnswersAreStored(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if err := Add(Answer{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(book{version, make([]Answer, maxAnswers)})
	if err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Path()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "permissions", "answers.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Add(Answer{Key: "one more"}); err == nil || !strings.Contains(err.Error(), "envctl permissions rm") {
		t.Errorf("got %v", err)
	}
}
