package docker_test

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func TestASandboxOfAnImageWithoutALocaleHasUTF8(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	if got := output(t, open(t, cfg), "sh", "-c", "echo $LANG"); got != "C.UTF-8\n" {
		t.Errorf("LANG is %q", got)
	}
	cfg.Env = map[string]string{"LANG": "C"}
	if got := output(t, open(t, cfg), "sh", "-c", "echo $LANG"); got != "C\n" {
		t.Errorf("LANG of the configuration is %q", got)
	}
	for variable, want := range map[string]bool{"LANG=de_DE.UTF-8": true, "LC_ALL=C": true, "LC_CTYPE=C": true, "LANGUAGE=de": false, "PATH=/bin": false} {
		if got := docker.HasLocale(variable); got != want {
			t.Errorf("an image with %s has a locale: %v", variable, got)
		}
	}
}
