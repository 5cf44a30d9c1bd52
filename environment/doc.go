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
// (package runnerscripts), and nothing of any particular agent or sandbox.
//
// Where to look, by file:
//
//	config, sandbox, blocks          what is configured; kinds of sandboxes; their form in files
//	agents, image                    agents; images with them
//	create, environment, list        Create, Attach, Remove; New, Close; List, GC, names
//	source, workspace, changes       what the workspace starts with; its files; Changes, Patch, Apply
//	branch                           the commits of a sandbox as a branch of a repository of this machine
//	run, query, query_failure        a prompt: one call, its events, how it fails
//	follow, permission               the query of another program; permission requests
//	gateway, budget                  keys, budgets and policy of models, allowed hosts, served inside the sandbox; asking for more
//	session, secrets, errors         the conversation and its transcript; what is redacted; error types
//	script, process, durable, logs   how runner scripts are started and read; those that outlive the program
//	query_record, waiting            where a kept sandbox stores the events of a query; what waits for an answer
//	fork, move, pool, record         copies, Pause and Usage; another sandbox; many; host records
//
// internal/configfile reads YAML and profiles,
// internal/hostgit runs git on this machine, internal/redact redacts secrets. Package
// internal/workspace of the module compares and patches.
package environment
