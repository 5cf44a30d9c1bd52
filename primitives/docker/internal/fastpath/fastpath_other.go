//go:build !linux

package fastpath

import "errors"

// Only Linux runs containers on the kernel of their host.

// Folder returns "": there is no folder.
func Folder(string, string) string { return "" }

// Hold returns false: there is no folder.
func Hold(string, string) (folder string, fresh bool, unlock func(), ok bool) {
	return "", false, nil, false
}

// Listen fails with errors.ErrUnsupported.
func Listen(string, string) (Listener, error) { return Listener{}, errors.ErrUnsupported }

// Remove does nothing.
func Remove(string, string) error { return nil }

// RemoveOrphans does nothing.
func RemoveOrphans(string, func(string) bool) error { return nil }

// executableThere returns false: the engine is in a virtual machine, which sees the file in its own
// way.
func executableThere(string) bool { return false }
