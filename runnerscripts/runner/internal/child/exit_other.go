//go:build !linux

package child

// awaitExit waits until a child has exited, and reaps it: to wait only is not to be had
// everywhere.
func awaitExit(_ int, reap func() error) { _ = reap() }
