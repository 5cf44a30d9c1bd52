package sessionstore_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestTheStoreIsInTheStateFolderAndThisUsersAlone(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	if _, err := sessionstore.OpenExisting(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store that is not there: %v", err)
	}
	s, err := sessionstore.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), store.Record{ID: "a"}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err = sessionstore.OpenExisting(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Join(state, "agentenv", "sessions"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := sessionstore.Open(t.Context()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a folder that others can read: %v", err)
	}
}
