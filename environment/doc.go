// Package environment runs coding agents in sandboxes.
//
// An [Environment] is one sandbox that is prepared for one agent. It places the
// files the agent starts with, calls the runner scripts inside the sandbox, turns
// what they print into events, and brings the results out as a list of changed
// files, as one patch, or as commits on a branch.
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
// Config.OnPermission answers the agent's permission requests.
//
// [Create] chooses the kind of sandbox by configuration, [New] takes any
// primitives.EnvironmentPrimitive. Package session builds on this one: it queues prompts,
// numbers and stores events, and its conversation outlives the sandbox.
//
// The package knows the names of the runner scripts and the events they print
// (package runnerscripts), but not the flags or the output of an agent. Two things have names of
// their own here: internal/configfile reads a profile from files of Claude Code, and sandbox.go
// finds the runner of a local sandbox.
//
// Where to look, by file:
//
//	config, sandbox, blocks      what is configured; kinds of sandboxes; their form in files
//	agents, registry, profiles   agents; those of the ACP registry; profiles
//	image                        images with agents
//	create, environment, list    Create, Attach, Remove; New, Pause, Close; List, GC
//	source, workspace, changes   what the workspace starts with; its files; Changes, Patch, Apply
//	difference                   what changes are counted from, and which do not count
//	branch                       the commits of a sandbox as a branch of a repository of this machine
//	run, query                   a prompt: one call, its events, its permission requests
//	session, record              the conversation and its transcript; what the next program needs
//	gateway, secrets, logs       keys and hosts; what is redacted; what operators read
//	fork, move, pool, errors     copies and Usage; another sandbox; many; error types
//
// The packages below internal do the work and do not import this one: script runs the runner scripts, query runs a prompt
// to its end, gate serves the gateway in a sandbox, kept stores what this machine knows of sandboxes, configfile reads YAML
// and profiles, acpregistry has the agents of the ACP registry, hostgit runs git, secrets finds the secrets of a
// configuration and redact redacts them. Package internal/workspace of the module compares and patches.
package environment
