// Package store keeps sessions: their numbered events, the agent's transcript
// and the workspace.
//
// [Store] is the contract, and [NewMemory] the implementation for tests and for
// programs whose sessions may end with them. Programs hand a store to
// session.Open and need nothing else of this package; import it to write another
// store, and prove that one with one call of storetest.Run.
package store
