package unshared_test

import (
	"context"
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/examples/unshared"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// TestAnAgentRunsInIt runs the scripted agent and checks that nothing is left.
func TestAnAgentRunsInIt(t *testing.T) {
	root := t.TempDir()
	box, err := unshared.New(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	env, err := environment.New(t.Context(), box, environment.Config{Agent: environment.Agent{Name: "script"}})
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	res, err := env.Run(t.Context(), "Say hello")
	if err != nil || len(res.Changes) != 1 || res.Changes[0].Path != "hello.txt" {
		t.Errorf("result %+v, %v", res, err)
	}
	if out, err := env.Exec(t.Context(), "sh", "-c", "echo $PPID"); err != nil || out != "1\n" {
		t.Errorf("the guest has the process ID %q, %v, want 1 in a namespace of its own", out, err)
	}
	if _, err := box.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestContract runs the groups that a process namespace of its own can affect: the guest is the
// first process in it.
func TestContract(t *testing.T) {
	primitivestest.Run(t, primitivestest.Harness{
		Groups: []string{"exec", "ending", "lifecycle"},
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			return unshared.New(ctx, dir)
		},
	})
}
