// Package remote drives sessions of an agentenv server, as 'envctl serve' or package server runs it.
//
// Its types have the methods of those in package session, with the same errors:
//
//	c, err := remote.New(remote.Config{URL: "http://127.0.0.1:8377", Token: token})
//	if err != nil {
//		return err
//	}
//	s, err := c.Create(ctx, session.Config{Environment: environment.Config{
//		Sandbox: environment.Sandbox{Type: "docker"},
//		Agent:   environment.Agent{Name: "claude"},
//	}})
//	if err != nil {
//		return err
//	}
//	turn, err := s.Prompt(ctx, "fix the tests")
//	if err != nil {
//		return err
//	}
//	for ev, err := range turn.Events(ctx) {
//		...
//	}
//
// The client survives a connection that breaks, and a server that starts again: it sends a change again under the same key,
// which the server makes once, and goes on with the event after the last one that it has.
package remote
