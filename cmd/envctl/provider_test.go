package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// theirs simulates a provider of another module. Its sandboxes are local.
type theirs struct{ local.Provider }

func (theirs) Examine(_ context.Context, spec primitives.Spec) []primitives.Finding {
	return []primitives.Finding{
		{Subject: "cluster", Detail: "it answers"},
		{Subject: "quota", Status: primitives.FindingMissing, Detail: "one sandbox is left", Advice: "ask for more"},
		{Subject: "image", Status: primitives.FindingFailed, Err: errors.New("no image " + spec.Image)},
	}
}

// otherModule returns a sandbox of the provider of another module.
func otherModule(t *testing.T) environment.Sandbox {
	t.Helper()
	return environment.Sandbox{Type: "theirs", Spec: primitives.Spec{Image: "web"}, Provider: theirs{local.Provider{Root: t.TempDir()}}}
}

func TestDoctorAsksAProviderOfAnotherModule(t *testing.T) {
	findings := checkType(t.Context(), environment.Config{Sandbox: otherModule(t)}, "theirs")
	want := []finding{
		{Check: "theirs cluster", Status: statusOK, Detail: "it answers"},
		{Check: "theirs quota", Status: statusMissing, Detail: "one sandbox is left", Fix: "ask for more"},
		{Check: "theirs image", Status: statusFailed, Detail: "no image web"},
	}
	if !slices.Equal(findings, want) {
		t.Errorf("findings: %+v", findings)
	}
	if types := allTypes(otherModule(t)); !slices.Contains(types, "theirs") || len(types) != len(primitives.Types())+1 {
		t.Errorf("doctor looks at %v", types)
	}
}

func TestDoctorCallsATypeThatWasNotChosenMissing(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix:///nosuch/docker.sock")
	chosen := environment.Config{Sandbox: environment.Sandbox{Type: "docker"}}
	for want, cfg := range map[string]environment.Config{statusFailed: chosen, statusMissing: {Sandbox: otherModule(t)}} {
		if f := checkType(t.Context(), cfg, "docker"); len(f) != 1 || f[0].Check != "docker engine" || f[0].Status != want {
			t.Errorf("with the type %s: %+v", cfg.Sandbox.Type, f)
		}
	}
}

func TestASandboxOfAnotherModuleIsFoundAndListed(t *testing.T) {
	ctx, s := t.Context(), otherModule(t)
	s.Image, s.Keep = "", true
	env, err := environment.Create(ctx, environment.Config{Sandbox: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(env.Close(), environment.Remove(context.WithoutCancel(ctx), s, env.ID())); err != nil {
			t.Error(err)
		}
	})
	at, err := find(ctx, s, env.ID()[:len(env.ID())-2])
	if err != nil || at.id != env.ID() || at.sandbox.Type != "theirs" {
		t.Errorf("find: %+v, %v", at, err)
	}
	if flag := whereFlag(at.sandbox); flag != "--sandbox theirs " {
		t.Errorf("it is found with %q", flag)
	}
	from := choices(s)
	found, err := listAll(ctx, from)
	list := withQueries(ctx, environment.Config{}, from, found)
	if err != nil || len(list) != 1 || list[0].ID != env.ID() || list[0].Type != "theirs" {
		t.Errorf("ls: %+v, %v", list, err)
	}
}
