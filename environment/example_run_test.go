package environment_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The type chooses the sandbox: "docker" instead of "local" needs no other change.
func ExampleCreate() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox:   environment.Sandbox{Type: "local"},
		Workspace: []environment.Source{{Files: []environment.File{{Path: "README.md", Content: "hello\n"}}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	out, err := env.Exec(ctx, "cat", "README.md")
	fmt.Print(out, err)
	// Output:
	// hello
	// <nil>
}

// Run sends a prompt and returns the result. AllowAll is for sandboxes that confine the agent.
func ExampleEnvironment_Run() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [
			{"ask": {"write": {"path": "fix.go", "content": "package fix\n"}}}, {"text": "Fixed."}]}]}`)},
		OnPermission: environment.AllowAll,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	res, err := env.Run(ctx, "fix the tests")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Text, res.StopReason)
	for _, c := range res.Changes {
		fmt.Println(c.Kind, c.Path)
	}
	// Output:
	// Fixed. end_turn
	// created fix.go
}

// A failed query is a QueryError. Its code is the kind of failure.
func ExampleQueryError() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [
			{"fail": {"code": "api", "message": "the model is overloaded"}}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	_, err = env.Run(ctx, "fix the tests")
	var failed *environment.QueryError
	if errors.As(err, &failed) {
		fmt.Println(failed.Failure.Code == runnerscripts.FailAPI, failed.Failure.Message)
	}
	// Output: true the model is overloaded
}

// A command that does not succeed is an ExitError with its output.
func ExampleEnvironment_Exec() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{Sandbox: environment.Sandbox{Type: "local"}})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	_, err = env.Exec(ctx, "sh", "-c", "echo 2 tests failed; exit 1")
	var exit *environment.ExitError
	if errors.As(err, &exit) {
		fmt.Print(exit.Status.Code, " ", exit.Output)
	}
	// Output: 1 2 tests failed
}

// Events arrive as they happen, each with the payload of its type.
func ExampleEnvironment_ExecuteQuery() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [
			{"run": ["true"]}, {"text": "All tests pass."}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: "test it"}) {
		if err != nil {
			log.Fatal(err)
		}
		switch v := ev.Value().(type) {
		case *runnerscripts.ContentChunk:
			fmt.Print(ev.Text())
		case *runnerscripts.QueryCompleted:
			fmt.Println("\n" + v.StopReason)
		}
	}
	// Output:
	// All tests pass.
	// end_turn
}

// OnPermission looks at what the agent wants to do and decides.
func ExampleConfig_onPermission() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [
			{"ask": {"write": {"path": "a.txt", "content": "a"}}}, {"ask": {"run": ["touch", "b.txt"]}}]}]}`)},
		OnPermission: func(_ context.Context, req environment.PermissionRequest) environment.PermissionDecision {
			if req.ToolCall.Kind == runnerscripts.ToolEdit {
				return req.Allow()
			}
			return req.Reject("edit files only")
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	res, err := env.Run(ctx, "write two files")
	fmt.Println(len(res.Changes), res.Rejected, err)
	// Output: 1 [touch b.txt] <nil>
}

// A program that cannot decide at once can answer later, by the ID of the request.
func ExampleEnvironment_Respond() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [
			{"ask": {"run": ["true"]}}, {"text": "Deployed."}]}]}`)},
		OnPermission: environment.AnswerLater,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: "deploy it"}) {
		if err != nil {
			log.Fatal(err)
		}
		if req, ok := ev.Value().(*runnerscripts.PermissionRequest); ok {
			if err := env.Respond(ctx, req.ID, req.Allow()); err != nil {
				log.Fatal(err)
			}
		}
		fmt.Print(ev.Text())
	}
	// Output: Deployed.
}

// An interrupted query completes. So does a query whose loop ends early.
func ExampleEnvironment_Interrupt() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [
			{"text": "Working."}, {"delay_ms": 3600000}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: "do everything"}) {
		if err != nil {
			log.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeAgentMessage {
			if err := env.Interrupt(ctx); err != nil {
				log.Fatal(err)
			}
		}
		if done, ok := ev.Value().(*runnerscripts.QueryCompleted); ok {
			fmt.Println(done.StopReason)
		}
	}
	// Output: cancelled
}
