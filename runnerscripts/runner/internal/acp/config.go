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

// Config says how to drive one agent. The functions may be nil; they are called
// one at a time.
type Config struct {
	// Query is the request that starts the conversation.
	Query runnerscripts.QueryRequest
	Out   agent.Sink
	// Program is the agent's name for people.
	Program string
	// Workspace is where the agent works; empty means that of the query.
	Workspace string

	// Launch makes the command that starts the agent. It is called at each start.
	Launch func(model string) (child.Command, error)
	// ModelAtLaunch says that Launch sets the model, not a request after it.
	ModelAtLaunch bool
	// AuthMethod, if not empty, is how to log in before the session is made.
	AuthMethod string
	// History tells what there is to go on with. It is called at each start; nil
	// means that every start is a new conversation.
	History func() (History, error)
	// Began is called when the agent has made a new session.
	Began func(sessionID, program, version string) error

	// MCPServers are those whose tools the agent gets. The values of their
	// environments and headers are the final ones.
	MCPServers []runnerscripts.MCPServer

	// Guard refuses tools for files, whatever the mode allows.
	Guard agent.Guard
	// Modes are the permission modes that the driver keeps instead of the agent,
	// each with the agent's own mode below it.
	Modes map[string]string
	// Allows says whether a mode of Modes allows a tool call without asking.
	Allows func(mode string, call runnerscripts.ToolCall) bool

	// KeepsAlways says whether the driver keeps the decision "allow always" about a tool
	// call, for its kind, because the agent does not follow it.
	KeepsAlways func(call runnerscripts.ToolCall) bool

	// Translate may change an update of the agent.
	Translate func(Update) Update
	// Usage is what a query cost, where the agent's reply does not say it in
	// ACP's own way.
	Usage func(reply acpsdk.PromptResponse) runnerscripts.Usage
	// Ended is called after each query, before its tool calls without an end get
	// one.
	Ended func()
	// Took reports, after Ended, whether the agent has taken the prompt into the
	// conversation: a hook may have stopped it. Nil means that it always does.
	Took func() bool
	// Answered reports, after Ended, whether the agent has kept an answer to the prompt: one
	// that ends its turn without any has given up. Nil means that it always has.
	Answered func() bool
	// Forgets says that the agent does not remember the answer that it was at when
	// a query was interrupted or failed.
	Forgets bool
	// WholeThoughts says that each thought comes in one piece.
	WholeThoughts bool
	// Failure makes an error of one that the agent answered with; nil means a
	// FailAgent.
	Failure func(err *jsonrpc.Error) error

	// StartTime is how long the agent may take to start, Silence how long it may
	// say nothing while it works, and CancelTime how long it may take to stop after an
	// interrupt. Zero means 5 minutes, 15 minutes and 20 seconds.
	StartTime, Silence, CancelTime time.Duration
}

// History is what a conversation that goes on has behind it.
type History struct {
	// SessionID is the agent's own id of the session; empty for a new one.
	SessionID string
	// Prompts is the number of prompts in it, for the ids of blocks.
	Prompts int
	// Cost is what it cost so far, in dollars, if the agent counts that by session.
	Cost float64
	// Updates is the number of updates that the agent repeats of it even after it
	// has said that the session is loaded.
	Updates int
}

// Update is something that an agent says of the session.
type Update struct {
	Kind string // ACP's "sessionUpdate"
	Raw  json.RawMessage
}
