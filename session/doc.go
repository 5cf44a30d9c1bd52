// Package session holds conversations with coding agents that outlive their
// sandboxes.
//
// An [AgentSession] takes prompts one after the other, numbers everything that
// happens and stores it before anybody sees it, asks for permissions, and makes
// and ends sandboxes as they are needed: the agent goes on in a new one with the
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
// calls, subagents, usage. The same fold serves events as they come, a log that
// is read again, and the agent's own history.
//
// The package is for programs that build on conversations. Whoever wants to run
// an agent once, and to keep nothing, needs package environment only.
package session
