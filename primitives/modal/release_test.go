package modal_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

func TestASandboxOfAnotherReleaseGetsAGuestOfThisOne(t *testing.T) {
	newServer(t)
	cfg := config(t)
	s := open(t, cfg)
	work := func(s primitives.EnvironmentPrimitive) {
		t.Helper()
		data, err := primitives.ReadFile(t.Context(), s, "work", 100)
		if err != nil || string(data) != "of hours" {
			t.Errorf("read %q, %v", data, err)
		}
	}
	for name, content := range map[string][]byte{"work": []byte("of hours"), "/agentenv/runner/envrunner": testdocker.OlderRunner(t)} {
		if err := s.WriteFile(t.Context(), name, bytes.NewReader(content), primitives.WriteOptions{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := modal.Provider{}.Attach(t.Context(), s.ID())
	if v, is := errors.AsType[*guest.VersionError](err); !is || v.Theirs != guest.Version-1 {
		t.Fatalf("without a runner: %v", err)
	}
	provider := modal.Provider{Runner: func(context.Context, string, string) (string, error) { return cfg.Runner, nil }}
	places := map[string]bool{}
	for range 2 { // the second installs the guest while the first runs it
		attached, err := provider.Attach(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := attached.Close(); err != nil {
				t.Error(err)
			}
		}()
		work(attached)
		joined := attached.(*guest.Sandbox)
		at := joined.RunnerPath(cfg.Runner)
		if joined.RunnerPath("another file") != "" {
			t.Error("it has a runner that it was not given")
		}
		if got := run(t, joined, "readlink /proc/$PPID/exe"); got != at+"\n" {
			t.Errorf("its guest is %q, and its runner %q", got, at)
		}
		places[at] = true
	}
	if len(places) != 1 {
		t.Errorf("one runner is in several places: %v", places)
	}
	if got := run(t, s, "ls /agentenv"); strings.Count(got, "envrunner") != 1 {
		t.Errorf("there is in the sandbox:\n%s", got)
	}
	joined, err := provider.Attach(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	copies, err := primitives.Fork(t.Context(), joined, 1)
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	work(copies[0])
	_, terr := copies[0].Terminate(t.Context())
	if err := errors.Join(terr, copies[0].Close(), joined.Close()); err != nil {
		t.Error(err)
	}
	work(s) // the older guest keeps serving the program that created the sandbox
}
