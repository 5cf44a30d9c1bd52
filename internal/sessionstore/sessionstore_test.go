package sessionstore_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

func TestTheSizeOfTheStoreIsThatOfItsVariable(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	create := func(size, id string) error {
		t.Setenv(sessionstore.MaxSizeVariable, size)
		s, err := sessionstore.Open(t.Context())
		if err != nil {
			return err
		}
		return errors.Join(s.Create(t.Context(), store.Record{ID: id}), s.Close())
	}
	for size, want := range map[string]error{"1KiB": syscall.ENOSPC, "much": fs.ErrInvalid, "1GiB": nil, "none": nil} {
		err := create(size, size)
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), sessionstore.MaxSizeVariable) {
			t.Errorf("with %s: %v", size, err)
		}
	}
}
