// Package session holds conversations with coding agents that outlive their
// sandboxes.
//
// An [AgentSession] takes prompts one after the other, numbers every event and
// stores it before it publishes it, asks for permissions, and creates
// and ends sandboxes as needed: the agent continues in a new one with the
// same memory and the same files.
//
//	s, err := session.Open(ctx, session.Config{
//		Environment: environment.Config{
//			Sandbox: environment.Sandbox{Type: "local"},
//			Agent:   environment.Agent{Name: "claude"},
//		},
//		Store: store.NewMemory(),
//	})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	turn, err := s.Prompt(ctx, "fix the tests")
//	if err != nil {
//		return err
//	}
//	for ev, err := range turn.Events(ctx) {
//		...
//	}
//
// A [Conversation] folds events into what a person wants to see: messages, tool
// calls, subagents, usage. The same fold serves live events, a stored log
// and the agent's own history.
//
// Where to look: session.go opens a session and rebuilds its state; turn.go and worker.go run prompts; sandbox.go creates
// the sandbox, also a new one for an old conversation, which beginning.go reads; checkpoint.go and transcript.go store
// what that needs, and package internal/workspace the files; rewind.go, fork.go and move.go choose another beginning;
// durable.go follows the query of a killed program; log.go numbers and stores events; state.go and reduce.go fold them;
// permission.go and interrupt.go answer the agent.
//
// The package is for programs that build on conversations. To run
// an agent once, without storing anything, use package environment.
package session
