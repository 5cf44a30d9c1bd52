package acp

import (
	"encoding/json"
	"time"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// Config says how to drive one agent. The functions may be nil; they are called one at a time.
type Config struct {
	// Query is the request that starts the conversation.
	Query runnerscripts.QueryRequest
	Out   agent.Sink
	// Program is the agent's name in messages.
	Program string
	// Workspace is the agent's working directory; empty means the workspace of Query.
	Workspace string

	// Launch returns the command that starts the agent. It is called at each start.
	Launch func(model string) (child.Command, error)
	// ModelAtLaunch says that Launch sets the model, so no request does.
	ModelAtLaunch bool
	// AuthMethod is the method of the login before a session is created; empty means no login.
	AuthMethod string
	// History returns the conversation to continue. It is called at each start; nil means that
	// every start is a new conversation.
	History func() (History, error)
	// Began is called when the agent has created a session.
	Began func(sessionID, program, version string) error

	// MCPServers are the MCP servers for the agent. Variables in their environments and headers
	// must be expanded.
	MCPServers []runnerscripts.MCPServer

	// Guard refuses file tools, whatever the mode allows.
	Guard agent.Guard
	// Modes are the permission modes that the driver implements instead of the agent, each
	// mapped to the underlying mode of the agent.
	Modes map[string]string
	// Allows says whether a mode of Modes allows a tool call without asking.
	Allows func(mode string, call runnerscripts.ToolCall) bool

	// KeepsAlways reports whether the driver remembers the decision "allow always" about a tool
	// call, for its kind, because the agent does not.
	KeepsAlways func(call runnerscripts.ToolCall) bool

	// Offers says that the agent reports its commands after each start. The start waits for them, for up
	// to 3 seconds, so that they come before the first prompt.
	Offers bool
	// Translate may modify an update of the agent.
	Translate func(Update) Update
	// Usage returns the usage of a query, for agents whose reply does not report it as ACP
	// specifies.
	Usage func(reply acpsdk.PromptResponse) runnerscripts.Usage
	// Ended is called after each query, before its open tool calls are ended.
	Ended func()
	// Took reports, after Ended, whether the agent has added the prompt to the conversation: a
	// hook may have blocked it. Nil means always.
	Took func() bool
	// Answered reports, after Ended, whether the agent has stored an answer to the prompt: an
	// agent that ends its turn without one has given up. Nil means always.
	Answered func() bool
	// Spoiled reports, after Ended, whether the running program cannot continue the conversation, for
	// example because its history is one that the model's API refuses. Then the program ends, and the
	// next prompt resumes the conversation. Nil means never.
	Spoiled func() bool
	// Forgets says that the agent forgets its unfinished answer when a query is interrupted or
	// fails.
	Forgets bool
	// WholeThoughts says that each thought comes in one piece.
	WholeThoughts bool
	// Failure converts an error reply of the agent; nil means a FailAgent.
	Failure func(err *jsonrpc.Error) error

	// StartTime limits the start of the agent, Silence the time without a message while it
	// works, and CancelTime the time to stop after an interrupt. Zero means 5 minutes, 15
	// minutes and 20 seconds.
	StartTime, Silence, CancelTime time.Duration
}

// History is an earlier conversation to continue.
type History struct {
	// SessionID is the agent's own id of the session; empty for a new one.
	SessionID string
	// Prompts is the number of prompts in it, for the ids of blocks.
	Prompts int
	// Cost is the conversation's cost in dollars, if the agent counts costs by session.
	Cost float64
	// Updates is the number of old updates that the agent still repeats after it has reported
	// the session as loaded.
	Updates int
}

// Update is a session update from the agent.
type Update struct {
	Kind string // ACP's "sessionUpdate"
	Raw  json.RawMessage
}
