// Package environment runs coding agents in sandboxes.
//
// An [Environment] is one sandbox that is prepared for one agent. It places the
// files the agent starts with, calls the runner scripts inside the sandbox, turns
// what they print into events, and brings the results out as a list of changed
// files or as one patch.
//
//	env, err := environment.Create(ctx, environment.Config{
//		Sandbox: environment.Sandbox{Type: "local"},
//		Agent:   environment.Agent{Name: "claude"},
//		OnPermission: environment.AllowAll,
//	})
//	if err != nil {
//		return err
//	}
//	defer env.Close()
//	res, err := env.Run(ctx, "fix the tests")
//	if err != nil {
//		return err
//	}
//	fmt.Println(res.Text, len(res.Changes))
//	out, err := env.Exec(ctx, "go", "test", "./...")
//
// [Environment.ExecuteQuery] returns the events of a prompt as they happen, and
// Config.OnPermission decides about what the agent asks permission for.
//
// [Create] chooses the kind of sandbox by configuration, [New] takes any
// primitives.EnvironmentPrimitive. Whoever wants prompts that are queued, events
// that are numbered and kept, and a conversation that outlives its sandbox uses
// package session, which stands on this one.
//
// The package knows the names of the runner scripts and the events they print
// (package runnerscripts), and nothing of any particular agent or sandbox.
package environment
