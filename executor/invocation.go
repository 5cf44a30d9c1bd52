package executor

import "encoding/json"

// SchemaVersion is the version of the format of [Invocation].
const SchemaVersion = "2.2"

// Mode says whether a conversation begins.
type Mode string

// The modes.
const (
	Start  Mode = "start"  // the first prompt of a conversation
	Resume Mode = "resume" // a later one, in a new process: the executor remembers by the session ID
)

// Invocation is the first line that an executor's process reads.
type Invocation struct {
	SchemaVersion string `json:"schema_version"`
	Mode          Mode   `json:"mode"`
	SessionID     string `json:"session_id" jsonschema:"names the conversation; AGENT_SESSION_ID has it too"`
	// Parameters are {"prompt": TEXT}, or what the parameters_schema of the profile describes.
	Parameters json.RawMessage `json:"parameters"`
	ProjectDir string          `json:"project_dir,omitempty" jsonschema:"the workspace, and the working directory"`
	AgentName  string          `json:"agent_name,omitempty"`
	// AgentBlueprint describes the agent, if there is more to say than its name.
	AgentBlueprint *Blueprint      `json:"agent_blueprint,omitempty"`
	ExecutorConfig json.RawMessage `json:"executor_config,omitempty" jsonschema:"config of the profile, unchanged"`
	Metadata       json.RawMessage `json:"metadata,omitempty"`
}

// Blueprint describes the agent to an executor.
type Blueprint struct {
	Name         string               `json:"name"`
	SystemPrompt string               `json:"system_prompt,omitempty"`
	MCPServers   map[string]MCPServer `json:"mcp_servers,omitempty"`
}

// MCPServer is an MCP server that the executor starts or connects to.
type MCPServer struct {
	Type    string            `json:"type" jsonschema:"stdio or http"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty" jsonschema:"in addition to the executor's own"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// The variables of an executor that uses the JSON-RPC of its host; see package executor/rpc.
const (
	EnvSocket = "AGENTENV_EXECUTOR_SOCKET" // the path of the Unix socket to connect to, of a pool
	EnvURL    = "AGENTENV_EXECUTOR_URL"    // the address of the HTTP endpoint, in a sandbox
	EnvToken  = "AGENTENV_SESSION_TOKEN"
)

// The types of the lines after the invocation.
const (
	TypeTurn         = "turn"          // to a persistent executor: a further prompt
	TypeShutdown     = "shutdown"      // to a persistent executor: the end of the conversation
	TypeTurnComplete = "turn_complete" // from an executor: the end of a turn, with its result
)

// Turn is a further prompt for a persistent executor.
type Turn struct {
	Type       string          `json:"type"` // TypeTurn
	Parameters json.RawMessage `json:"parameters"`
}

// Shutdown is the last line for a persistent executor, before the end of its input.
type Shutdown struct {
	Type string `json:"type"` // TypeShutdown
}

// Parameters returns the parameters of a prompt that is a text.
func Parameters(prompt string) json.RawMessage {
	data, _ := json.Marshal(map[string]string{"prompt": prompt}) // a map of strings has no error
	return data
}
