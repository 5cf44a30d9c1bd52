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
// The client survives a connection that breaks, and a server that restarts: events go on after the last one that came, and a
// change is sent again under the same key, which a server makes once. A server that restarts forgets the keys, but for those
// of a session's last 64 prompts.
package remote
