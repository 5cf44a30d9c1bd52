package kept

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/internal/statedir"
)

// Releases until November 2026 had two files for a sandbox: what List shows in the folder "activity", and what Attach
// needs in the folder "sandboxes". takeOld turns them into records, once.
func (s *Store) takeOld() error {
	state := filepath.Dir(s.root.Name())
	if _, err := os.Stat(filepath.Join(state, "activity")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	shown, err := statedir.Open("activity")
	if err != nil {
		return err
	}
	defer func() { _ = shown.Close() }()
	made, err := statedir.Open("sandboxes")
	if err != nil {
		return err
	}
	defer func() { _ = made.Close() }()
	entries, err := fs.ReadDir(shown.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		r := new(Record)
		if data, err := readPrivate(shown, entry.Name()); err != nil || json.Unmarshal(data, r) != nil {
			continue // it says nothing that can be used
		}
		r.Made, _ = readPrivate(made, entry.Name()) // without it, Attach asks for the agent
		if !json.Valid(r.Made) {
			r.Made = nil
		}
		if err := s.write(fileOf(r.Type, r.ID), r); err != nil {
			return err
		}
		_ = made.Remove(entry.Name()) // if it stays, nothing reads it
	}
	_ = os.Remove(made.Name())
	return os.RemoveAll(shown.Name())
}
