// Package coordapi has what crosses between a coordinator, the clients that ask it for runs, and the runners that take them: the
// paths and bodies of claude-agent-orchestrator, and what is added here.
package coordapi

import (
	"encoding/json"
	"strings"
	"time"
)

// Prefix is the path below which a server of this project has its coordinator.
const Prefix = "/coordinator"

// SessionStatus is the state of a session.
type SessionStatus string

// The states of a session.
const (
	SessionPending  SessionStatus = "pending"
	SessionRunning  SessionStatus = "running"
	SessionIdle     SessionStatus = "idle" // between the turns of a persistent executor
	SessionStopping SessionStatus = "stopping"
	SessionStopped  SessionStatus = "stopped"
	SessionFinished SessionStatus = "finished"
	SessionFailed   SessionStatus = "failed"
	// NotExistent is what the status of an unknown session says.
	NotExistent SessionStatus = "not_existent"
)

// Session is one conversation, which runs continue.
type Session struct {
	ID     string        `json:"session_id"` // ses_ and 12 hexadecimal digits
	Status SessionStatus `json:"status"`
	// Error is why a failed session has failed, up to 2,000 bytes. The run has all of it.
	Error           string     `json:"error,omitempty"`
	CreatedAt       time.Time  `json:"created_at"`
	LastActivity    time.Time  `json:"last_activity"`
	LastResumedAt   *time.Time `json:"last_resumed_at"`
	AgentName       string     `json:"agent_name"`
	ParentSessionID string     `json:"parent_session_id"`
	// ProjectDir and ExecutorSessionID belong to the executor, Hostname and ExecutorProfile to its runner; see Bind.
	ProjectDir        string `json:"project_dir"`
	ExecutorSessionID string `json:"executor_session_id"`
	ExecutorProfile   string `json:"executor_profile"`
	Hostname          string `json:"hostname"`
	// Owner is the caller that asked for the session; empty for an admin.
	Owner string `json:"owner,omitempty"`
}

// Affinity says where a session can go on.
type Affinity struct {
	Hostname          string `json:"hostname"`
	ProjectDir        string `json:"project_dir"`
	ExecutorProfile   string `json:"executor_profile"`
	ExecutorSessionID string `json:"executor_session_id"`
}

// Result is what the agent of a session said last.
type Result struct {
	Text string          `json:"result_text"`
	Data json.RawMessage `json:"result_data"`
}

// RunType says whether a run begins a session.
type RunType string

// The types of runs.
const (
	StartSession  RunType = "start_session"
	ResumeSession RunType = "resume_session"
)

// RunStatus is the state of a run.
type RunStatus string

// The states of a run. The last three are its end.
const (
	RunPending   RunStatus = "pending"
	RunClaimed   RunStatus = "claimed" // handed to a runner that has not said that it started
	RunRunning   RunStatus = "running"
	RunStopping  RunStatus = "stopping"
	RunCompleted RunStatus = "completed"
	RunFailed    RunStatus = "failed"
	RunStopped   RunStatus = "stopped"
)

// Ended reports whether nothing more happens to a run.
func (s RunStatus) Ended() bool { return s == RunCompleted || s == RunFailed || s == RunStopped }

// ExecutionMode says what the caller of a run does meanwhile.
type ExecutionMode string

// The execution modes.
const (
	ModeSync          ExecutionMode = "sync"
	ModeAsyncPoll     ExecutionMode = "async_poll"
	ModeAsyncCallback ExecutionMode = "async_callback" // the parent session is resumed with the result
)

// Demands are what a run needs of its runner. An empty field demands nothing.
type Demands struct {
	Hostname        string `json:"hostname,omitempty"`
	ProjectDir      string `json:"project_dir,omitempty"`
	ExecutorProfile string `json:"executor_profile,omitempty"`
	ExecutorType    string `json:"executor_type,omitempty"`
	// Tags are those that the runner must have, besides others.
	Tags []string `json:"tags,omitempty"`
}

// NewRun asks for a run.
type NewRun struct {
	Type      RunType `json:"type"`
	SessionID string  `json:"session_id,omitempty"` // to resume; empty for a new one
	AgentName string  `json:"agent_name,omitempty"`
	// Parameters are the agent's. Prompt is short for the parameter "prompt".
	Parameters        json.RawMessage `json:"parameters,omitempty"`
	Prompt            string          `json:"prompt,omitempty"`
	ProjectDir        string          `json:"project_dir,omitempty"`
	ParentSessionID   string          `json:"parent_session_id,omitempty"`
	ExecutionMode     ExecutionMode   `json:"execution_mode,omitempty"` // sync if it is empty
	AdditionalDemands Demands         `json:"additional_demands,omitzero"`
	// Scope is for the application, and comes back with the run.
	Scope json.RawMessage `json:"scope,omitempty"`
}

// Run is one turn of a session.
type Run struct {
	ID              string          `json:"run_id"` // run_ and 12 hexadecimal digits
	Type            RunType         `json:"type"`
	SessionID       string          `json:"session_id"`
	AgentName       string          `json:"agent_name"`
	Parameters      json.RawMessage `json:"parameters"`
	Prompt          string          `json:"prompt"`
	ProjectDir      string          `json:"project_dir"`
	ParentSessionID string          `json:"parent_session_id"`
	ExecutionMode   ExecutionMode   `json:"execution_mode"`
	Demands         Demands         `json:"demands"`
	Scope           json.RawMessage `json:"scope,omitempty"`
	// Blueprint is the agent that AgentName names.
	Blueprint *Agent `json:"resolved_agent_blueprint,omitempty"`
	// ExecutorSessionID is the session of the executor that a run resumes.
	ExecutorSessionID string     `json:"executor_session_id,omitempty"`
	Status            RunStatus  `json:"status"`
	RunnerID          string     `json:"runner_id"`
	Error             string     `json:"error"`
	CreatedAt         time.Time  `json:"created_at"`
	ClaimedAt         *time.Time `json:"claimed_at"`
	StartedAt         *time.Time `json:"started_at"`
	CompletedAt       *time.Time `json:"completed_at"`
	// TimeoutAt is when a pending run fails unless a runner matches its demands.
	TimeoutAt *time.Time `json:"timeout_at"`
}

// Agent is a blueprint: what a name of an agent means to the coordinator and its runners.
type Agent struct {
	Name         string `json:"name"`
	Description  string `json:"description,omitempty"`
	SystemPrompt string `json:"system_prompt,omitempty"`
	// ParametersSchema is the JSON schema of the parameters; without one the only parameter is "prompt", a string.
	ParametersSchema json.RawMessage `json:"parameters_schema,omitempty"`
	// OutputSchema is that of environment.Query.OutputSchema. Executors have their own.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Demands      Demands         `json:"demands,omitzero"`
	Hooks        Hooks           `json:"hooks,omitzero"`
}

// Cut shortens a text to size bytes and says so.
func Cut(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return strings.ToValidUTF8(text[:size], "") + "\n[cut]"
}

// IsSet reports whether there is a schema. Coordinators of other makes send null for none.
func IsSet(schema json.RawMessage) bool { return len(schema) > 0 && string(schema) != "null" }

// ParseAgents reads a list of agents, strictly.
func ParseAgents(data []byte) (list []Agent, err error) {
	err = Decode(data, &list, true)
	return list, err
}

// Hooks are agents that run before and after the runs of an agent.
type Hooks struct {
	OnRunStart  *Hook `json:"on_run_start,omitempty"`
	OnRunFinish *Hook `json:"on_run_finish,omitempty"`
}

// Hook is an agent that is run with the parameters {"run_id", "session_id", "agent_name", "parameters"}, and "status" and "error" of a
// run that has ended.
type Hook struct {
	AgentName string `json:"agent_name"`
	// TimeoutSeconds is how long a run waits for OnRunStart. Zero means 300.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
	// OnError says what happens if OnRunStart fails: continue, which is the default, or block.
	OnError string `json:"on_error,omitempty"`
}

// HookResult is the result_data, or the result_text, of a run of Hooks.OnRunStart. An answer of another form is a failure.
type HookResult struct {
	Action      string          `json:"action"` // continue or block
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	BlockReason string          `json:"block_reason,omitempty"`
}

// Executor describes the executor of a runner.
type Executor struct {
	Type    string          `json:"type,omitempty"`
	Command string          `json:"command,omitempty"`
	Config  json.RawMessage `json:"config,omitempty"`
}

// Registration is what a runner says of itself.
type Registration struct {
	Hostname            string   `json:"hostname"`
	ProjectDir          string   `json:"project_dir"`
	ExecutorProfile     string   `json:"executor_profile"`
	Executor            Executor `json:"executor"`
	Tags                []string `json:"tags,omitempty"`
	RequireMatchingTags bool     `json:"require_matching_tags,omitempty"`
	Agents              []Agent  `json:"agents,omitempty"`
	// Instance is a random word for one program: it may register again while it is online, and others may not.
	Instance string `json:"instance,omitempty"`
}

// Registered is the answer to a registration.
type Registered struct {
	RunnerID                 string `json:"runner_id"`
	PollEndpoint             string `json:"poll_endpoint"`
	PollTimeoutSeconds       int    `json:"poll_timeout_seconds"`
	HeartbeatIntervalSeconds int    `json:"heartbeat_interval_seconds"`
}

// Runner is a registered runner.
type Runner struct {
	ID string `json:"runner_id"`
	Registration
	Status        string    `json:"status"` // online or stale
	RegisteredAt  time.Time `json:"registered_at"`
	LastHeartbeat time.Time `json:"last_heartbeat"`
}

// Polled is the answer to a poll; one of the fields is set.
type Polled struct {
	Run *Run `json:"run,omitempty"`
	// StopSessions are the sessions to stop. They come again until the runner reports that they have ended.
	StopSessions []string `json:"stop_sessions,omitempty"`
	// Deregistered says that the runner must end, or register again.
	Deregistered bool `json:"deregistered,omitempty"`
}

// Report is what a runner says of a run, of a session or of itself.
type Report struct {
	RunnerID string `json:"runner_id"`
	Instance string `json:"instance,omitempty"`
	// SessionStatus is that of the session after a completed run: finished, if it is empty, or idle.
	SessionStatus SessionStatus `json:"session_status,omitempty"`
	// Status is of the run, or of the session.
	Status string `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
	Signal string `json:"signal,omitempty"`
	// Runs are the IDs of the runs that a runner has, in a heartbeat.
	Runs []string `json:"runs,omitempty"`
}

// Bind says which session of an executor a session is.
type Bind struct {
	ExecutorSessionID string `json:"executor_session_id"`
	Hostname          string `json:"hostname"`
	ExecutorProfile   string `json:"executor_profile"`
	ProjectDir        string `json:"project_dir,omitempty"`
}

// Metadata changes a session.
type Metadata struct {
	LastResumedAt     *time.Time `json:"last_resumed_at,omitempty"`
	ExecutorSessionID string     `json:"executor_session_id,omitempty"`
	ProjectDir        string     `json:"project_dir,omitempty"`
}

// The types of events of executors. Others are passed on.
const (
	EventMessage  = "message"
	EventPostTool = "post_tool"
	EventResult   = "result"
)

// Event is what an executor says of its session.
type Event struct {
	Type      string    `json:"event_type"`
	SessionID string    `json:"session_id"`
	Timestamp time.Time `json:"timestamp,omitzero"`
	// ID makes an event that is sent again one event. Empty means that each is another.
	ID string `json:"event_id,omitempty"`

	Role    string `json:"role,omitempty"` // of a message: user or assistant
	Content []Text `json:"content,omitempty"`

	ToolName   string          `json:"tool_name,omitempty"`
	ToolInput  json.RawMessage `json:"tool_input,omitempty"`
	ToolOutput json.RawMessage `json:"tool_output,omitempty"`
	Error      string          `json:"error,omitempty"`

	ResultText string          `json:"result_text,omitempty"`
	ResultData json.RawMessage `json:"result_data,omitempty"`
}

// Text is a block of a message.
type Text struct {
	Type string `json:"type"` // text
	Text string `json:"text"`
}

// Failure is the body of an answer that is an error. Detail is a text, or a Detail.
type Failure struct {
	Detail json.RawMessage `json:"detail"`
}

// Detail is an error with a name.
type Detail struct {
	Error   string `json:"error"`
	Message string `json:"message,omitempty"`
	// ValidationErrors are of parameter_validation_failed.
	ValidationErrors []ValidationError `json:"validation_errors,omitempty"`
}

// ValidationError says what is wrong with a parameter.
type ValidationError struct {
	Path       string `json:"path"` // $ for all of them
	Message    string `json:"message"`
	SchemaPath string `json:"schema_path"`
}
