package sqlite

import (
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestNothingBeginsOnADiskThatIsNearlyFull(t *testing.T) {
	_, dir := withSession(t)
	s, err := Config{MinFree: math.MaxInt64}.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	queued := numbered(1)
	queued.Type = runnerscripts.TypeQueryQueued
	for what, err := range map[string]error{
		"prompt":  s.Append(t.Context(), "s", queued),
		"session": s.Create(t.Context(), store.Record{ID: "new"}),
	} {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "make room") {
			t.Errorf("a new %s: %v", what, err)
		}
	}
	if err := s.Append(t.Context(), "s", numbered(1)); err != nil {
		t.Errorf("an event of what runs: %v", err)
	}
	check(t, s, 1)
}

func TestNothingBeginsInAStoreThatIsFull(t *testing.T) {
	s, dir := withSession(t)
	put(t, s, noise(1, 1<<20)) // a file
	full, err := s.size(t.Context())
	if err != nil || full < 1<<20 || full > 2<<20 {
		t.Fatalf("the store has %d bytes, %v", full, err)
	}
	if s, err = (Config{MaxSize: full, MinFree: -1}).Open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	queued := numbered(1)
	queued.Type = runnerscripts.TypeQueryQueued
	if size, limit, err := s.Size(t.Context()); size != full || limit != full || err != nil {
		t.Errorf("it says that it has %d of %d bytes, %v", size, limit, err)
	}
	for what, err := range map[string]error{
		"prompt":  s.Append(t.Context(), "s", queued),
		"session": s.Create(t.Context(), store.Record{ID: "new"}),
		"fork":    s.Fork(t.Context(), "s", 0, store.Record{ID: "copy"}),
	} {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "envctl sessions rm --older-than") {
			t.Errorf("a new %s: %v", what, err)
		}
	}
	if err := s.Append(t.Context(), "s", numbered(1)); err != nil {
		t.Errorf("an event of what runs: %v", err)
	}
	if err := s.Delete(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), store.Record{ID: "new"}); err != nil {
		t.Errorf("a new session after the old one was removed: %v", err)
	}
}

func TestAnUnknownDurabilityIsRefused(t *testing.T) {
	if _, err := (Config{Durability: "always"}).Open(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "fast, query or event") {
		t.Errorf("open: %v", err)
	}
}
