//go:build linux

package main

// benchmarks returns all benchmarks, in the order of the table.
func benchmarks() []benchmark {
	return []benchmark{
		{"local exec", benchExec},
		{"local stream", benchStream},
		{"local files", benchFiles},
		{"local watch", benchWatch},
		{"jsonl", benchJSONL},
		{"sessions", benchSessions},
		{"guest", benchGuest},
		{"forward", benchForward},
		{"docker exec", benchDockerExec},
		{"docker files", benchDockerFiles},
		{"docker stream", benchDockerStream},
		{"docker watch", benchDockerWatch},
		{"docker life", benchDockerLife},
		{"docker ready", benchDockerReady},
		{"docker crowd", benchDockerCrowd},
		{"modal exec", benchModalExec},
		{"modal stream", benchModalStream},
		{"modal files", benchModalFiles},
		{"modal life", benchModalLife},
		{"agents", benchAgents},
		{"turn of claude", benchTurn("claude")},
		{"turn of codex", benchTurn("codex")},
		{"turn of gemini", benchTurn("gemini")},
		{"turn of opencode", benchTurn("opencode")},
	}
}
