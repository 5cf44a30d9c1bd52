// Package executor has what a host and an executor agree on. An executor is an agent that is a
// program of the user, in any language. A [Profile] describes it, and the agent "command" runs it
// in a sandbox of any type. docs/executors.md is the guide.
//
// profile.go has the profile; invocation.go what an executor reads and prints; parameters.go the
// parameters of a procedural executor; violation.go the error for JSON that does not match its schema.
// Package executor/schema checks that, and package executor/rpc is the host's side of the JSON-RPC of
// executors.
package executor
