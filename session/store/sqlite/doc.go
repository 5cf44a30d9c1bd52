// Package sqlite keeps sessions on a disk of this machine, so that they survive the
// program that ran them. Several programs of one user can share a store.
//
// A store is a folder. The database agentenv.db holds the records, the logs and small
// blobs, blobs/ holds those of more than 64 KiB as files named by their digest, tmp/ those that are
// being written, and locks/ a file for each session that a program drives. The folder must
// be on a local disk: network file systems lack what SQLite's write-ahead log needs.
//
// Acknowledged changes survive the death of the program, even by SIGKILL. What a power failure
// may take is a choice, see [Durability]: never the order, and by default nothing of a query that
// has ended. A large blob is on the disk when it is acknowledged.
//
// Blobs are compressed with zstd where that saves at least a sixteenth; callers see the content
// only. Those that earlier versions have stored stay as they are.
//
// Every event has a checksum, and every blob is named by its digest, so damaged data is
// reported as store.ErrCorrupt and never returned.
package sqlite
