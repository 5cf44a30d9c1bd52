package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/agentenv-dev/agentenv/session/store"
)

// migrations bring a database from each version to the next. A released migration never changes. What
// callers choose is bytea: text of PostgreSQL cannot have every character.
var migrations = []string{`
CREATE SEQUENCE changes; -- of all logs, for the order of List
CREATE SEQUENCE fences;  -- numbers leases
CREATE TABLE session (
	n         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	id        bytea NOT NULL UNIQUE,
	parent    bytea NOT NULL,
	created   text NOT NULL, -- RFC 3339
	updated   text NOT NULL,
	last_seq  bigint NOT NULL,
	stored    bigint NOT NULL,
	record    bytea NOT NULL, -- JSON of what has no column
	config    bytea,
	state     bytea,
	state_seq bigint NOT NULL
);
CREATE INDEX session_stored ON session (stored);
CREATE TABLE event (
	session  bigint NOT NULL REFERENCES session ON DELETE CASCADE,
	seq      bigint NOT NULL,
	own      boolean NOT NULL, -- its session_id is that of the session
	envelope bytea NOT NULL, -- JSON of all fields but seq, payload and an own session_id
	payload  bytea,
	PRIMARY KEY (session, seq)
);
CREATE TABLE lease (
	session bigint PRIMARY KEY REFERENCES session ON DELETE CASCADE,
	owner   text NOT NULL, -- of one store of one program
	name    text NOT NULL, -- of the program
	fence   bigint NOT NULL,
	expires timestamptz NOT NULL
);
CREATE INDEX lease_expires ON lease (expires);
CREATE INDEX lease_owner ON lease (owner);
CREATE TABLE blob (
	n      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	digest bytea NOT NULL UNIQUE,
	size   bigint NOT NULL
);
CREATE TABLE piece (
	blob    bigint NOT NULL REFERENCES blob ON DELETE CASCADE,
	i       integer NOT NULL,
	content bytea NOT NULL,
	PRIMARY KEY (blob, i)
);
CREATE TABLE session_blob (
	session bigint NOT NULL REFERENCES session ON DELETE CASCADE,
	blob    bigint NOT NULL REFERENCES blob,
	seq     bigint NOT NULL, -- last_seq of the session when the blob was put
	PRIMARY KEY (session, blob)
);
CREATE INDEX session_blob_blob ON session_blob (blob);
CREATE TABLE upload ( -- blobs that a call of PutBlobs is about to give to its session
	id   text NOT NULL,
	blob bigint NOT NULL REFERENCES blob,
	made timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (id, blob)
);
CREATE INDEX upload_blob ON upload (blob);
`}

// migrationLock is the advisory lock under which one program at a time changes the tables: "agentenv" in
// ASCII.
const migrationLock = 0x6167656e74656e76

// migrate brings the database to the current version.
func (s *Store) migrate(ctx context.Context) error {
	return s.once(ctx, s.pool, answerTime, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS version (n integer NOT NULL)"); err != nil {
			return err
		}
		var version int
		if err := tx.QueryRow(ctx, "SELECT coalesce(max(n), 0) FROM version").Scan(&version); err != nil {
			return err
		}
		if version > len(migrations) {
			return fmt.Errorf("%w %d; this program knows versions up to %d: update it", store.ErrNewer, version, len(migrations))
		}
		for _, m := range migrations[version:] {
			if _, err := tx.Exec(ctx, m); err != nil {
				return err
			}
		}
		if version == len(migrations) {
			return nil
		}
		_, err := tx.Exec(ctx, "INSERT INTO version (n) VALUES ($1)", len(migrations))
		return err
	})
}
