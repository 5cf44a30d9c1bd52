// Command permission holds a conversation with an agent that asks before it acts,
// and has the sandbox made anew between two prompts: the agent remembers.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
)

// scenario is what the scripted agent plays.
const scenario = `{"turns": [{"steps": [
	{"text": "Prompt {{turn}}: I would like to write a file."},
	{"ask": {"write": {"path": "note-{{turn}}.txt", "content": "{{prompt}}\n"}}},
	{"run": ["ls"]}
]}]}`

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	s, err := session.Open(ctx, session.Config{
		Environment: environment.Config{
			Sandbox: environment.Sandbox{Type: "local"},
			Agent:   environment.Agent{Name: "script", Config: json.RawMessage(scenario)},
			OnPermission: func(_ context.Context, req environment.PermissionRequest) environment.PermissionDecision {
				fmt.Printf("\n[allowed: %s]\n", req.ToolCall.Title)
				return req.Allow()
			},
		},
	})
	if err != nil {
		return err
	}
	for _, prompt := range []string{"first", "second"} {
		turn, err := s.Prompt(ctx, prompt)
		if err != nil {
			return err
		}
		for ev, err := range turn.Events(ctx) {
			if err != nil {
				return err
			}
			fmt.Print(ev.Text())
		}
		if _, err := turn.Wait(ctx); err != nil {
			return err
		}
		if err := s.TerminateEnvironment(ctx); err != nil {
			return err
		}
	}
	return s.Destroy(ctx)
}
