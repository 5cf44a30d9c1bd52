package session_test

import (
	"context"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// scripted returns the configuration of an agent that needs no key and no network. Replace
// "script" with "claude" for a real agent.
func scripted(scenario string) environment.Config {
	return environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent:   environment.Agent{Name: "script", Config: []byte(scenario)},
	}
}

// Open a session, send a prompt, and reduce its events to a conversation.
func Example() {
	ctx := context.Background()
	cfg := scripted(`{"turns": [{"steps": [{"ask": {"run": ["echo", "tested"]}}, {"text": "It works."}]}]}`)
	cfg.OnPermission = func(_ context.Context, req environment.PermissionRequest) environment.PermissionDecision {
		fmt.Println("may it?", req.ToolCall.Title)
		return req.Allow()
	}
	s, err := session.Open(ctx, session.Config{Environment: cfg})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	turn, err := s.Prompt(ctx, "run the tests")
	if err != nil {
		log.Fatal(err)
	}
	conversation, err := session.Reduce(turn.Events(ctx))
	if err != nil {
		log.Fatal(err)
	}
	for _, b := range conversation.Blocks {
		switch b.Kind {
		case session.BlockUser, session.BlockAgent:
			fmt.Printf("%s: %s\n", b.Kind, b.Text)
		case session.BlockTool:
			fmt.Printf("%s: %s\n", b.Kind, b.Tool.Status)
		}
	}
	done, err := turn.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(done.StopReason)
	// Output:
	// may it? echo tested
	// user: run the tests
	// tool: completed
	// agent: It works.
	// end_turn
}

// Open continues a closed session: in a new sandbox the agent has the earlier conversation and
// files.
func ExampleOpen_again() {
	ctx := context.Background()
	cfg := session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "prompt {{turn}} after [{{history}}]"}]}]}`),
		Store:       store.NewMemory(),
	}
	for _, text := range []string{"hello", "do you remember?"} {
		s, err := session.Open(ctx, cfg)
		if err != nil {
			log.Fatal(err)
		}
		turn, err := s.Prompt(ctx, text)
		if err != nil {
			log.Fatal(err)
		}
		for ev, err := range turn.Events(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(ev.Text())
		}
		fmt.Println()
		if err := s.Close(); err != nil {
			log.Fatal(err)
		}
		cfg.ID = s.ID()
	}
	// Output:
	// prompt 1 after []
	// prompt 2 after [hello]
}
