package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/gateway/credentials"
)

// startSet runs envctl credentials set on a terminal, in folders of the test.
func startSet(t *testing.T) *screen {
	t.Helper()
	alone(t)
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	s := startHere(t, nil, "credentials", "set", "--init", "anthropic")
	s.wait("Secret of anthropic: ")
	return s
}

func TestASecretIsTypedWithoutEcho(t *testing.T) {
	s := startSet(t)
	s.typeIn("hunter9\r")
	if code := s.end(); code != exitOK {
		t.Errorf("exit status %d:\n%s", code, &s.seen)
	}
	if got := s.seen.String(); got != "\r\n" {
		t.Errorf("the terminal shows %q", got)
	}
	store, err := credentials.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if secret, err := store.Get("anthropic"); secret != "hunter9" || err != nil {
		t.Errorf("stored %q, %v", secret, err)
	}
}

func TestAnInterruptedSecretIsNotStored(t *testing.T) {
	for name, interrupt := range map[string]func(*screen){
		"Ctrl-C": func(s *screen) { s.typeIn("hunter9\x03") },
		"signal": func(s *screen) {
			if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
				s.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSet(t)
			interrupt(s)
			if code := s.end(); code != exitInterrupted {
				t.Errorf("exit status %d:\n%s", code, &s.seen)
			}
			if got := s.seen.String(); got != "\r\nenvctl: interrupted\r\n" {
				t.Errorf("the terminal shows %q", got)
			}
			store, err := credentials.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if list, err := store.List(); len(list) > 0 || err != nil {
				t.Errorf("stored %v, %v", list, err)
			}
		})
	}
}
