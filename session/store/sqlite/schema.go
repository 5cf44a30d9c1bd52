package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/session/store"
)

// migrations bring a database from each version to the next. The version of a database is the
// number of applied migrations. A released migration never changes.
var migrations = []string{`
CREATE TABLE session (
	n         INTEGER PRIMARY KEY AUTOINCREMENT, -- is never used again
	id        TEXT NOT NULL UNIQUE,
	parent    TEXT NOT NULL,
	created   TEXT NOT NULL,
	updated   TEXT NOT NULL,
	last_seq  INTEGER NOT NULL,
	stored    INTEGER NOT NULL UNIQUE, -- counts the changes of all logs, for the order of List
	record    TEXT NOT NULL, -- JSON of what has no column
	config    BLOB,
	state     BLOB,
	state_seq INTEGER NOT NULL
);
CREATE TABLE event (
	session  INTEGER NOT NULL REFERENCES session ON DELETE CASCADE,
	seq      INTEGER NOT NULL,
	own      INTEGER NOT NULL, -- its session_id is that of the session
	envelope TEXT NOT NULL, -- JSON of all fields but seq, payload and an own session_id
	payload  BLOB,
	sum      INTEGER NOT NULL, -- CRC-32C of seq, envelope and payload
	PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE TABLE blob (
	n       INTEGER PRIMARY KEY,
	digest  BLOB NOT NULL UNIQUE,
	content BLOB -- NULL if it is a file
);
CREATE TABLE session_blob (
	session INTEGER NOT NULL REFERENCES session ON DELETE CASCADE,
	blob    INTEGER NOT NULL REFERENCES blob,
	PRIMARY KEY (session, blob)
) WITHOUT ROWID;
CREATE INDEX session_blob_blob ON session_blob (blob);
`, `
-- The id of a session that is being deleted is a blob.
-- A change of the log rewrites the row of its session, so what may be large has a table of its own.
CREATE TABLE large (
	session INTEGER PRIMARY KEY REFERENCES session ON DELETE CASCADE,
	config  BLOB,
	state   BLOB
);
INSERT INTO large (session, config, state) SELECT n, config, state FROM session;
ALTER TABLE session DROP COLUMN config;
ALTER TABLE session DROP COLUMN state;
`, `
ALTER TABLE blob ADD COLUMN size INTEGER NOT NULL DEFAULT 0; -- of the file; zero without one
CREATE INDEX blob_size ON blob (size) WHERE size > 0;
`, `
-- seq is last_seq of the session when the blob was put; -1 if unknown.
ALTER TABLE session_blob ADD COLUMN seq INTEGER NOT NULL DEFAULT -1;
`, `
-- plain is the size of the content if it is stored compressed, else zero.
ALTER TABLE blob ADD COLUMN plain INTEGER NOT NULL DEFAULT 0;
`}

// migrate brings the database to the current version.
func (s *Store) migrate(ctx context.Context, migrations []string) error {
	version, err := versionOf(ctx, s.w)
	if err != nil {
		return err
	}
	var mode string
	if err := s.w.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if version == len(migrations) && mode == "wal" {
		return nil
	}
	// Serialize programs that open the store at the same time.
	unlock, err := flock.Lock(ctx, filepath.Join(s.dir, lockFolder, openLock), nil)
	if err != nil {
		return err
	}
	defer unlock()
	if version > 0 && version < len(migrations) {
		if err := s.unused(); err != nil {
			return err
		}
	}
	// Both can be set only outside of a transaction, and both persist. A new database has neither,
	// and a backup not the second.
	if _, err := s.w.ExecContext(ctx, "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL"); err != nil {
		return err
	}
	return s.transact(ctx, true, func(ctx context.Context, tx *sql.Tx) error {
		version, err := versionOf(ctx, tx) // another program may have migrated it
		if err != nil {
			return err
		}
		if version > len(migrations) {
			return newer(version, len(migrations))
		}
		for _, m := range migrations[version:] {
			if _, err := tx.ExecContext(ctx, m); err != nil {
				return err
			}
		}
		if err := s.measure(ctx, tx); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))
		return err
	})
}

// measure stores the sizes of the files, which the first versions did not.
func (s *Store) measure(ctx context.Context, tx *sql.Tx) error {
	return s.eachFile(func(digest []byte) error {
		info, err := os.Stat(s.file(digest))
		if err != nil {
			return unlessGone(err)
		}
		_, err = tx.ExecContext(ctx, "UPDATE blob SET size = ? WHERE digest = ? AND content IS NULL", info.Size(), digest)
		return err
	})
}

func newer(found, known int) error {
	return fmt.Errorf("%w %d; this program knows versions up to %d: update it", store.ErrNewer, found, known)
}

func versionOf(ctx context.Context, db querier) (version int, err error) {
	err = db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	return version, err
}
