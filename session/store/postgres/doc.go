// Package postgres stores sessions in a PostgreSQL database, which several programs on several machines
// can use at once. [Open] opens one.
//
// The lease of a session has a number and an expiry by the database's clock. A program that dies, or does
// not reach the database, loses its leases after 10 seconds, and the database refuses its later changes:
// a store.ErrConflict. [Store] is a store.Shared, so session.Host.TakeOver continues the sessions of
// programs that died.
//
// The tables are in the schema that search_path of the URL names, else in the one that PostgreSQL chooses;
// the first Open makes them. Contents of blobs are in the database, in pieces of 1 MiB.
package postgres
