package rpc_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/executor/rpc"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Start the executor of examples/executor-rpc in a pool, and send it a prompt. It asks for a key and for
// permission, and reports what it does.
func ExamplePool() {
	ctx := context.Background()
	sandbox, err := local.New(ctx, local.Config{Workspace: "../../examples/executor-rpc/profiles"})
	if err != nil {
		log.Fatal(err)
	}
	defer sandbox.Terminate(ctx)
	pool, err := rpc.NewPool(rpc.PoolConfig{Sandbox: sandbox, Service: rpc.NewService(rpc.Config{
		Credential: func(_ context.Context, name string) (string, error) { return "the key of " + name, nil },
		OnPermission: func(_ context.Context, p rpc.Permission) runnerscripts.PermissionDecision {
			return p.Allow()
		},
		OnMessage: func(_ context.Context, m rpc.Message) { fmt.Printf("%s: %s\n", m.Session, m.Body) },
		Audit:     rpc.AuditTo(os.Stderr),
	})})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	executor, err := pool.Spawn(ctx, rpc.Spec{
		Command: []string{"python3", "demo/executor.py"},
		Grant:   rpc.Grant{Session: "first", Credentials: []string{"anthropic"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := rpc.ExecutePrompt(ctx, executor, rpc.Prompt{SessionToken: executor.Token, Prompt: "hello key:anthropic run:make"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Status, result.MessageCount)
	// Output:
	// first: {"text": "hello"}
	// first: {"key": "anthropic", "length": 20}
	// first: {"ran": "make"}
	// completed 3
}
