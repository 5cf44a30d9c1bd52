//go:build !linux

package main

import "errors"

// starts does not count here.
type starts struct{ err error }

const inContainers, unknown = "containers", "unknown"

func countStarts() *starts {
	return &starts{err: errors.New("starts of agents are counted on Linux only")}
}
func (s *starts) stop()            {}
func (s *starts) of(string) string { return "?" }
