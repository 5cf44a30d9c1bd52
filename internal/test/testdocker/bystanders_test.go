package testdocker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestWhatIsDoneToBystandersIsNoticed does to each of them what a careless test might do.
func TestWhatIsDoneToBystandersIsNoticed(t *testing.T) {
	b, err := Plant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	ctx, eng := t.Context(), Engine(t)
	if err = b.Check(ctx); err != nil {
		t.Fatal("untouched:", err)
	}
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{b.orphan, func() error { return eng.ContainerKill(ctx, b.orphan, "KILL") }},
		{b.foreign, func() error { return eng.ContainerRemove(ctx, b.foreign, container.RemoveOptions{Force: true}) }},
		{b.volume, func() error { return eng.VolumeRemove(ctx, b.volume, false) }},
		{b.extra, func() error { return eng.NetworkRemove(ctx, b.extra) }},
		{"network agentenv of " + b.ended, func() error { return eng.NetworkDisconnect(ctx, "agentenv", b.ended, true) }},
		{"envctl ls " + b.kept, func() error { return os.RemoveAll(filepath.Join(os.Getenv("XDG_STATE_HOME"), "agentenv")) }},
		{b.kept, func() error { return eng.ContainerKill(ctx, b.kept, "KILL") }},
		{b.ended, func() error { return eng.ContainerStart(ctx, b.ended, container.StartOptions{}) }},
	} {
		touched := "have touched " + c.name + ":"
		if err != nil && strings.Contains(err.Error(), touched) {
			t.Errorf("%s was not yet touched: %v", c.name, err)
		}
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if err = b.Check(ctx); err == nil || !strings.Contains(err.Error(), touched) {
			t.Errorf("after %s was touched: %v", c.name, err)
		}
	}
}

// A sandbox of another program that comes or goes during the tests changes no bystander.
func TestABystanderIsTheSameBesideOtherSandboxes(t *testing.T) {
	const alone = `{"id":"kept"}`
	for _, listed := range []string{alone, alone + "\n" + `{"id":"other"}`, `{"id":"other"}` + "\n" + alone} {
		if got := lineOf(listed, "kept"); got != alone {
			t.Errorf("in %q it is %q, want %q", listed, got, alone)
		}
	}
	if got := lineOf(`{"id":"other"}`, "kept"); got != "" {
		t.Errorf("a sandbox that is gone is listed: %q", got)
	}
}
