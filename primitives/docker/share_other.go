//go:build !linux

package docker

// executableThere reports whether programs can be run from where a file is. The
// engine is in a virtual machine, which sees the file in its own way.
func executableThere(string) bool { return false }
