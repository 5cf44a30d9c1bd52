package store

import "context"

// Shared is a [Store] that programs on several machines share. The lease of a program that dies, or
// that does not reach the store, expires; then another program may lock the session, and the store
// refuses the changes of the first one with [ErrConflict] until that releases its lease. A program that
// never had the lease may change a session, as in any [Store].
type Shared interface {
	Store

	// Owner returns the name of the other program that has the lease of a session. It is empty if
	// none has, the lease has expired or is this program's, or there is no such session.
	Owner(ctx context.Context, id string) (string, error)

	// Abandoned returns the sessions whose lease another program had and did not renew: it has died.
	Abandoned(ctx context.Context) ([]string, error)

	// Lost returns the sessions whose leases this program has not released, and has lost or not renewed
	// in time: another program may have them.
	Lost() []string
}
