package servertoken

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestATokenIsAcceptedUntilItIsRemovedOrExpires(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	if _, err := Check("none"); !errors.Is(err, errUnknown) {
		t.Errorf("without any token: %v", err)
	}
	token, err := Issue("alice", "user", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Issue("alice", "admin", 0); !errors.Is(err, fs.ErrExist) || strings.Contains(err.Error(), "file") {
		t.Errorf("the name once more: %v", err)
	}
	short, err := Issue("brief", "runner", time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := Check(token); err != nil || i.Name != "alice" || i.Role != "user" {
		t.Errorf("%+v, %v", i, err)
	}
	if _, err := Check(short); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an old one: %v", err)
	}
	file := filepath.Join(state, "agentenv", folder, "tokens.json")
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), strings.TrimPrefix(token, prefix)) {
		t.Errorf("the file holds the token: %v", err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(token); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file that others can read: %v", err)
	}
	if err := errors.Join(os.Chmod(file, 0o600), Revoke("alice")); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(token); !errors.Is(err, errUnknown) {
		t.Errorf("a removed one: %v", err)
	}
	if err := Revoke("alice"); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "file") {
		t.Errorf("removed once more: %v", err)
	}
}

func TestTokensThatAreIssuedAtOnceAreAllThere(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var all sync.WaitGroup
	const tokens = 5 // each waits for the others, which write to the disk, for ten seconds at most
	for n := range tokens {
		all.Go(func() {
			if _, err := Issue(fmt.Sprint("name-", n), "user", 0); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if list, err := List(); err != nil || len(list) != tokens {
		t.Errorf("%d tokens, %v", len(list), err)
	}
}
