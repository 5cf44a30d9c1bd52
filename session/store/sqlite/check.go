package sqlite

import (
	"context"
	"errors"
	"strings"
)

// Check reads the whole database, and returns store.ErrCorrupt if it is damaged. A large one
// takes long: if ctx ends before, the error is that of ctx. It reads no files of blobs.
func (s *Store) Check(ctx context.Context) error {
	var found string
	err := s.r.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found)
	if err == nil && found != "ok" {
		err = damagedDatabase(s.dir, errors.New(strings.Join(strings.Fields(found), " ")))
	}
	if err != nil {
		return s.failed(ctx, "check", "", err)
	}
	return nil
}
