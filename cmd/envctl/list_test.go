package main

import (
	"fmt"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

func TestTheListSaysWhereTheGuestIsOfAnotherRelease(t *testing.T) {
	for version, want := range map[int]string{0: "kept", guest.Version: "kept", guest.Version - 1: fmt.Sprintf("kept (guest %d)", guest.Version-1)} {
		s := listed{SandboxInfo: environment.SandboxInfo{Status: primitives.StatusRunning, Kept: true, GuestVersion: version}}
		if got := s.status(); got != want {
			t.Errorf("version %d: the status is %q, want %q", version, got, want)
		}
	}
}
