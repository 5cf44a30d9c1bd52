// Package store keeps sessions: a record of each, its numbered events, and the blobs
// that the events name, such as files of the workspace.
//
// The log of events is the single source of truth. Large data is stored in blobs, which are
// immutable and named by the digest of their content, so that an event that names a blob never
// changes its meaning.
//
// [Store] is the contract, and [NewMemory] an implementation for tests and for programs whose
// sessions may end with them. Programs pass a store to session.Open and need nothing else from
// this package. To write another store, implement [Store] and verify it with storetest.Run.
package store
