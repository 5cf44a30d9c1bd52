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
// Where to look: config.go says what is configured, and record.go stores that; session.go opens a session and rebuilds its
// state; turn.go and worker.go run prompts, within the limits of limit.go; sandbox.go creates the sandbox, also a new one
// for an old conversation, which beginning.go reads; monitor.go watches the sandbox, and files.go has its files;
// checkpoint.go and transcript.go store what another sandbox needs, package internal/workspace the files, and prune.go
// removes old checkpoints; rewind.go, fork.go and move.go choose another beginning; durable.go follows the query of a
// killed program; log.go numbers and stores events, which ready.go gathers; state.go folds them into a state, reduce.go
// into the conversation of conversation.go; permission.go and interrupt.go answer the agent; host.go keeps many sessions
// open.
//
// The package is for programs that build on conversations. To run
// an agent once, without storing anything, use package environment.
package session
