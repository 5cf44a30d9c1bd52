// Package coordinator hands runs of agents to runners on other machines, and has the sessions to which these runs belong: the
// coordinator of claude-agent-orchestrator, whose clients, runners and executors work with it unchanged.
//
// A client asks for a run (POST /runs). A runner registers, polls, and gets the runs whose demands it meets. It says that it has
// started, sends the events of the executor and reports the end. A session is a conversation: later runs resume it, at the runner
// that has it.
//
// Everything is stored before it is acknowledged, and nothing is forgotten before the other side has acknowledged it. A run whose
// runner did not say that it has started is handed out again; so are stops, until the run has ended. A runner therefore says
// that it has started before it starts, and does nothing if the answer is an error: then one runner at most runs it.
//
// state.go has what is stored and how it changes, db.go the database, runs.go, runners.go, sessions.go, hooks.go and callbacks.go
// the rules, routes.go the operations, and stream.go the server-sent events.
package coordinator
