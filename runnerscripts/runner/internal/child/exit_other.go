//go:build !linux

package child

// awaitExit waits until a child has exited, and reaps it: waiting without reaping is not
// portable. Its ID may then be reused, so a signal to the group may hit another one.
func awaitExit(_ int, reap func() error) { _ = reap() }
