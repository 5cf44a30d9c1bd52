package store

import "context"

// Shared is a [Store] that programs on several machines share. The lease of a program that dies, or
// that does not reach the store, expires; then another program may lock the session, and the store
// refuses the changes of the first one with [ErrConflict].
type Shared interface {
	Store

	// Owner returns the name of the other program that has the lease of a session; it is empty if
	// none has, the lease has expired, or it is this program's.
	Owner(ctx context.Context, id string) (string, error)

	// Abandoned returns the sessions whose lease has expired: their programs have died.
	Abandoned(ctx context.Context) ([]string, error)

	// Lost returns the sessions whose leases this program has lost since the last call.
	Lost() []string
}
