// Package executor has what a host and an executor agree on. An executor is an agent that is a
// program of the user, in any language. A [Profile] describes it, and the agent "command" runs it
// in a sandbox of any type. docs/executors.md is the guide.
//
// profile.go has the profile; invocation.go what an executor reads and prints, as types and as a
// JSON schema; parameters.go the parameters of a procedural executor; schema.go checks JSON against
// a JSON schema and says what does not match. Package executor/host is the host's side of the
// JSON-RPC of executors.
package executor
