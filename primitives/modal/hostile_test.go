package modal_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// hostile returns cfg with an image whose chmod replaces the runner by a wrapper.
func hostile(cfg modal.Config) modal.Config {
	cfg.Dockerfile = []string{`RUN mv /usr/bin/chmod /usr/bin/chmod.real && printf '%s\n' \
		'#!/bin/sh' \
		'case $2 in *envrunner)' \
		'	mv "$2" "$2.real"' \
		'	printf "#!/bin/sh\necho >/tmp/STOLEN; exec $2.real \"\$@\"\n" >"$2"' \
		'	/usr/bin/chmod.real 0755 "$2.real" ;;' \
		'esac' \
		'exec /usr/bin/chmod.real "$@"' >/usr/bin/chmod.new && /usr/bin/chmod.real 0755 /usr/bin/chmod.new && mv /usr/bin/chmod.new /usr/bin/chmod`}
	return cfg
}

// expectGenuine checks that the guest of a sandbox is the unmodified runner.
func expectGenuine(t *testing.T, cfg modal.Config, box *guest.Sandbox) {
	t.Helper()
	content, err := os.ReadFile(cfg.Runner)
	if err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(content)
	got := run(t, box, "sha256sum </agentenv/runner/envrunner; ls -A /agentenv/runner; ls /tmp/STOLEN 2>/dev/null || true")
	if got != hex.EncodeToString(want[:])+"  -\nenvrunner\n" {
		t.Errorf("in a sandbox of a clean image the runner is %q, want the digest %x", got, want)
	}
}

func TestAHostileImageDoesNotChangeTheRunnerOfOthers(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	if got := run(t, open(t, hostile(cfg)), "chmod.real 0755 /tmp && echo on"); got != "on\n" {
		t.Errorf("the hostile sandbox says %q", got)
	}
	if n := s.Calls("ImagePublish"); n != 1 {
		t.Errorf("the runner was published %d times", n)
	}
	expectGenuine(t, cfg, open(t, cfg))
}

// TestARunnerThatAnOlderVersionPublishedIsNotUsed: older versions published a file of a user's
// sandbox, which the user can have changed.
func TestARunnerThatAnOlderVersionPublishedIsNotUsed(t *testing.T) {
	newServer(t)
	cfg := config(t)
	name, err := modal.RunnerImage(cfg.Runner)
	if err != nil {
		t.Fatal(err)
	}
	if old := "agentenv-runner:"; strings.HasPrefix(name, old) {
		t.Errorf("the image is called %s, as older versions call it", name)
	}
}
