// Package store keeps sessions: a record of each, its numbered events, and the blobs
// that the events name, such as files of the workspace.
//
// The log of events is the one source of truth. What is large is a blob, which is
// named by the digest of its content and never changes, so that an event that names one
// always means the same.
//
// [Store] is the contract, and [NewMemory] the implementation for tests and for
// programs whose sessions may end with them. Programs hand a store to
// session.Open and need nothing else of this package; import it to write another
// store, and prove that one with one call of storetest.Run.
package store
