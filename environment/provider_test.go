package environment_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// theirs is a provider of another module, with only the required methods.
type theirs struct{ root string }

func (p theirs) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	if err := spec.Refuse("there are no images here; leave it out", "image"); err != nil {
		return nil, err
	}
	return local.New(ctx, local.Config{Root: p.root, Env: spec.Environ(), Keep: spec.Keep})
}

func (p theirs) Attach(ctx context.Context, id string) (primitives.EnvironmentPrimitive, error) {
	return local.Attach(ctx, local.Config{Root: p.root}, id)
}

func (p theirs) List(ctx context.Context) ([]primitives.Info, error) {
	return local.Provider{Root: p.root}.List(ctx)
}

func (p theirs) Remove(ctx context.Context, id string) error {
	s, err := p.Attach(ctx, id)
	if err != nil {
		return err
	}
	_, err = s.Terminate(ctx)
	return errors.Join(err, s.Close())
}

func TestAProviderOfAnotherModuleDoesEverything(t *testing.T) {
	ctx := t.Context()
	box := environment.Sandbox{Type: "theirs", Provider: theirs{filepath.Join(t.TempDir(), "boxes")}}
	box.Env = map[string]string{"GREETING": "hello"}
	agent := environment.Agent{Name: "script"}
	say := func(t *testing.T, env *environment.Environment) {
		t.Helper()
		if out, err := env.Exec(ctx, "sh", "-c", "echo $GREETING"); err != nil || out != "hello\n" {
			t.Errorf("a command says %q, %v", out, err)
		}
		if res, err := env.Run(ctx, "Say hello"); err != nil || len(res.Changes) != 1 {
			t.Errorf("the agent: %+v, %v", res, err)
		}
	}
	finish := func(t *testing.T, env *environment.Environment) {
		t.Helper()
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Run("Create, List, Attach, Remove", func(t *testing.T) {
		kept := box
		kept.Keep = true
		env, err := environment.Create(ctx, environment.Config{Sandbox: kept, Agent: agent})
		if err != nil {
			t.Fatal(err)
		}
		say(t, env)
		finish(t, env)
		list, err := environment.List(ctx, box)
		if err != nil || len(list) != 1 || list[0].ID != env.ID() || list[0].Type != "theirs" || !list[0].Kept {
			t.Errorf("List: %+v, %v", list, err)
		}
		again, err := environment.Attach(ctx, environment.Config{Sandbox: box, Agent: agent}, env.ID())
		if err != nil {
			t.Fatal(err)
		}
		finish(t, again)
		if err := environment.Remove(ctx, box, env.ID()); err != nil {
			t.Error(err)
		}
		if found, err := environment.GC(ctx, box, environment.GCOptions{}); err != nil || len(found) > 0 {
			t.Errorf("GC: %+v, %v", found, err)
		}
	})
	t.Run("NewPool", func(t *testing.T) {
		pool, err := environment.NewPool(ctx, environment.Config{Sandbox: box, Agent: agent, Pool: environment.PoolConfig{Size: 1}})
		if err != nil {
			t.Fatal(err)
		}
		env, err := pool.Create(ctx, environment.Config{})
		if err != nil {
			t.Fatal(err)
		}
		say(t, env)
		finish(t, env)
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("Move, Fork", func(t *testing.T) {
		here := environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "boxes")}}
		env, err := environment.Create(ctx, environment.Config{Sandbox: here, Agent: agent})
		if err != nil {
			t.Fatal(err)
		}
		moved, err := env.Move(ctx, environment.Config{Sandbox: box})
		if err != nil {
			t.Fatal(errors.Join(err, env.Close()))
		}
		defer finish(t, moved)
		say(t, moved)
		copies, err := moved.Fork(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		finish(t, copies[0])
	})
	t.Run("what it cannot do", func(t *testing.T) {
		wrong := box
		wrong.Image = "debian"
		if _, err := environment.Create(ctx, environment.Config{Sandbox: wrong}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Create with an image: %v", err)
		}
		if _, err := environment.Images(ctx, box); !errors.Is(err, environment.ErrConfig) {
			t.Errorf("Images: %v", err)
		}
	})
}
