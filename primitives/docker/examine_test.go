package docker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
)

// finding returns what Examine found about one subject.
func finding(t *testing.T, p Provider, image, subject string) primitives.Finding {
	t.Helper()
	found := p.Examine(t.Context(), primitives.Spec{Image: image})
	i := slices.IndexFunc(found, func(f primitives.Finding) bool { return f.Subject == subject })
	if i < 0 {
		t.Fatalf("no finding is about the %s: %+v", subject, found)
	}
	return found[i]
}

func TestExamineFindsWhetherTheEngineHasTheImage(t *testing.T) {
	t.Parallel()
	const absent = "agentenv.example/nosuch:1"
	for _, c := range []struct {
		image  string
		pull   Pull
		status primitives.FindingStatus
		advice string
	}{
		{testdocker.Busybox(t), "", primitives.FindingOK, ""},
		{absent, "", primitives.FindingMissing, "docker pull " + absent},
		{absent, PullNever, primitives.FindingMissing, "docker pull " + absent},
	} {
		f := finding(t, Provider{Pull: c.pull}, c.image, "image")
		if f.Status != c.status || !strings.HasPrefix(f.Detail, c.image) || !strings.Contains(f.Advice, c.advice) ||
			strings.Contains(f.Detail, "fetch") != (c.status == primitives.FindingMissing && c.pull == "") {
			t.Errorf("%s, pull %q: %+v", c.image, c.pull, f)
		}
	}
}

func TestExamineWithoutAnEngineFails(t *testing.T) {
	t.Parallel()
	found := Provider{Host: "unix:///nosuch/docker.sock"}.Examine(t.Context(), primitives.Spec{})
	if len(found) != 1 || found[0].Subject != "engine" || found[0].Status != primitives.FindingFailed ||
		!errors.Is(found[0].Err, primitives.ErrUnavailable) {
		t.Errorf("%+v", found)
	}
}

func TestExamineFindsTheRunnerOfTheEngine(t *testing.T) {
	t.Parallel()
	ask := func(err error) Provider {
		return Provider{Runner: func(_ context.Context, goos, goarch string) (string, error) { return goos + " " + goarch, err }}
	}
	if f := finding(t, ask(nil), "", "runner"); f.Status != primitives.FindingOK || !strings.HasPrefix(f.Detail, "linux ") {
		t.Errorf("with a runner: %+v", f)
	}
	if f := finding(t, ask(errors.New("it is gone")), "", "runner"); f.Status != primitives.FindingFailed || !strings.Contains(f.Detail, "it is gone") {
		t.Errorf("without: %+v", f)
	}
}
