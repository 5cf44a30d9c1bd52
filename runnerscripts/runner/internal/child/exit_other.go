//go:build !linux

package child

// awaitExit waits until a child has exited, and reaps it: to wait alone is done differently
// by each system. What has got its number since may be signalled then, as a group.
func awaitExit(_ int, reap func() error) { _ = reap() }
