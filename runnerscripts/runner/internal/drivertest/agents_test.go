package drivertest

import (
	"fmt"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/claude"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/codex"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/gemini"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/opencode"
)

// subject is a driver under test, and what the suite must know of its agent.
type subject struct {
	name   string // in requests
	driver agent.Driver
	find   func(testing.TB) string // the pinned program
	// model makes an agent use the scripted model at a URL.
	model func(a *runnerscripts.Agent, url string)
	mode  string // in which a session starts
	// forgets: its transcript lacks tool calls that were interrupted.
	forgets bool
	// pin is the package in e2e/agents that holds the program, packed the path of a program
	// in an npm package of the name npm.
	pin, npm, packed string
}

func subjects() []subject {
	return []subject{
		{
			name: "claude", driver: claude.Driver{}, find: testagents.Claude, mode: "default",
			pin: "@anthropic-ai/claude-code", npm: "@anthropic-ai/claude-code-linux-x64", packed: "claude",
			model: func(a *runnerscripts.Agent, url string) {
				a.Env = map[string]string{"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"}
			},
		},
		codexSubject(),
		{
			name: "gemini", driver: gemini.Driver{}, find: testagents.Gemini, mode: "default", forgets: true,
			pin: "@google/gemini-cli", npm: "@google/gemini-cli", packed: "bundle/gemini.js",
			model: func(a *runnerscripts.Agent, url string) {
				a.Model = "gemini-2.5-pro"
				a.Env = map[string]string{"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "test-key"}
			},
		},
		{
			name: "opencode", driver: opencode.Driver{}, find: testagents.OpenCode, mode: "build",
			pin: "opencode-linux-x64", npm: "opencode-linux-x64", packed: "bin/opencode",
			model: func(a *runnerscripts.Agent, url string) {
				a.Model = "scripted/small"
				a.Config = fmt.Appendf(nil, `{"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible",`+
					`"options":{"baseURL":"%s/v1","apiKey":"test-key"},`+
					`"models":{"small":{"tool_call":true,"limit":{"context":128000,"output":8192}}}}}}`, url)
			},
		},
	}
}

// codexSubject is the one that starts soonest.
func codexSubject() subject {
	return subject{
		name: "codex", driver: codex.Driver{}, find: testagents.Codex, mode: "untrusted",
		pin: "@openai/codex", npm: "@openai/codex", packed: "vendor/triple/bin/codex",
		model: func(a *runnerscripts.Agent, url string) {
			a.Model = "gpt-5.5"
			a.Env = map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "test-key"}
		},
	}
}
