package runnerscripts

import (
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Protocol is the version of the protocol; every request carries it.
const Protocol = 2

// The scripts, by the name under which they are called.
const (
	SetupSession   = "setup-session"
	ExecuteQuery   = "execute-query"
	ReadTranscript = "read-transcript"
)

// Session holds the fields that every request has.
type Session struct {
	Protocol  int              `json:"protocol"`   // must be [Protocol]
	SessionID string           `json:"session_id"` // a UUID; also the agent's own session id where it takes one
	Agent     Agent            `json:"agent"`
	Paths     primitives.Paths `json:"paths"`
	// Gateway is how the agent reaches its models without a key; nil leaves that to the
	// agent's own settings.
	Gateway *Gateway `json:"gateway,omitempty"`
	// Launch is how an agent of the ACP registry starts; nil for other agents.
	Launch *Launch `json:"launch,omitempty"`
	// Judged means that the host decides about tool calls by rules: a call must mean the same whatever
	// came before, such as a change of the working directory.
	Judged bool `json:"judged,omitempty"`
	// Asks are the portable tools, AsksBash and AsksRead, about which the host's rules deny or ask
	// something: the agent must ask about each call, also if it would run without a question. An agent
	// that cannot do that ignores it.
	Asks []string `json:"asks,omitempty"`
	// Denies are the names in rules of other tools, in which * stands for any text, that the host's rules
	// deny: the agent must not offer them to its model, if it can withhold them.
	Denies []string `json:"denies,omitempty"`
}

// ExecutorSession returns the ID that executors know the session by: the one at the coordinator, if
// there is one.
func (s Session) ExecutorSession() string {
	if s.Gateway != nil && s.Gateway.CoordinatorSession != "" {
		return s.Gateway.CoordinatorSession
	}
	return s.SessionID
}

// The values of Session.Asks. They are names of package permission.
const (
	AsksBash = "Bash"
	AsksRead = "Read"
)

// RegistryPrefix begins the names of agents of the ACP registry, as in "acp:goose".
const RegistryPrefix = "acp:"

// IsRegistryAgent reports whether a name can be that of an agent of the ACP registry.
func IsRegistryAgent(name string) bool {
	id, ok := strings.CutPrefix(name, RegistryPrefix)
	return ok && plainID(id)
}

// Launch says how to start an agent of the ACP registry. The host resolves the name, so a runner
// needs no catalog.
type Launch struct {
	// Program is the command to find in PATH, and Args its arguments. [Agent].Command replaces both.
	Program string   `json:"program"`
	Args    []string `json:"args,omitempty"`
	// Env is added to the agent's environment; [Agent].Env takes precedence.
	Env map[string]string `json:"env,omitempty"`
	// UVX is the package that uvx runs, with Args, if Program is not in PATH; empty for none.
	UVX string `json:"uvx,omitempty"`
	// Advice says how the sandbox gets the agent, for the message of [FailAgentMissing].
	Advice string `json:"advice"`
}

// Gateway is an HTTP server at a loopback address of the sandbox. It passes requests on to models
// and to a coordinator, and adds the keys, which stay outside the sandbox.
type Gateway struct {
	// URL is the gateway's address, for example "http://127.0.0.1:40001".
	URL string `json:"url"`
	// Token is what the agent sends instead of its key. It is worth nothing elsewhere.
	Token string `json:"token"`
	// APIs maps each API that the gateway serves to its path, for example "/anthropic". URL and
	// path together are the base address of that API in the agent's settings.
	APIs map[ModelAPI]string `json:"apis"`
	// Proxy says that the gateway is also an HTTP proxy for the hosts that the sandbox may reach.
	Proxy bool `json:"proxy,omitempty"`
	// CoordinatorSession is the session's ID at the agent coordinator to which the gateway passes
	// on what executors send below [CoordinatorPath]; empty for no coordinator.
	CoordinatorSession string `json:"coordinator_session,omitempty"`
	// Executor is the token with which an executor reaches the host's JSON-RPC, at [ExecutorPath]
	// below URL; empty if the gateway does not serve that.
	Executor string `json:"executor,omitempty"`
	// Wait says that the program that serves the gateway may end while the agent continues.
	// Requests then wait until another program serves it.
	Wait bool `json:"wait,omitempty"`
}

// ExecutorPath is the path of the JSON-RPC of executors at a gateway.
const ExecutorPath = "/executor"

// Address returns the host and port of the URL.
func (g *Gateway) Address() string { return strings.TrimPrefix(g.URL, "http://") }

// CoordinatorPath is the path below which the gateway passes requests on to the coordinator. The
// token follows it.
const CoordinatorPath = "/coordinator"

// Variables of the environment of executors.
const (
	CoordinatorURL = "AGENT_ORCHESTRATOR_API_URL" // the coordinator's base address, with the token
	AgentSessionID = "AGENT_SESSION_ID"           // see [Session.ExecutorSession]
)

// NoProxy is the value of NO_PROXY: the hosts that are reached without a proxy.
const NoProxy = "127.0.0.1,localhost,::1"

// Variables returns the environment variables with which commands reach the proxy and the
// coordinator. The map is empty if there is neither. The token is part of the addresses because
// most programs take it only there.
func (g *Gateway) Variables() map[string]string {
	vars := map[string]string{}
	if g == nil {
		return vars
	}
	if g.CoordinatorSession != "" {
		vars[CoordinatorURL], vars[AgentSessionID] = g.URL+CoordinatorPath+"/"+g.Token, g.CoordinatorSession
	}
	if !g.Proxy {
		return vars
	}
	address := "http://" + proxyUser + ":" + g.Token + "@" + g.Address()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		vars[name] = address
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		vars[name] = NoProxy
	}
	vars["NODE_USE_ENV_PROXY"] = "1"            // else Node's own clients ignore the variables
	vars["GIT_HTTP_PROXY_AUTHMETHOD"] = "basic" // else git first asks without the credential
	return vars
}

const proxyUser = "agentenv"

// ProxyCredential returns the value after "Proxy-Authorization: Basic" in requests to the proxy:
// the token in another encoding.
func (g *Gateway) ProxyCredential() string {
	return base64.StdEncoding.EncodeToString([]byte(proxyUser + ":" + g.Token))
}

// ModelAPI names the format of a model's API.
type ModelAPI string

// The formats. The base address ends before the version for Anthropic and Gemini, as in
// "https://api.anthropic.com", and after it for OpenAI, as in "https://api.openai.com/v1".
const (
	APIAnthropic ModelAPI = "anthropic" // Messages
	APIOpenAI    ModelAPI = "openai"    // Responses and Chat Completions
	APIGemini    ModelAPI = "gemini"    // generateContent
)

// Agent says which agent to run and how. It is part of environment.Config and of the protocol.
type Agent struct {
	// Name chooses the agent: "script", "claude", ..., or "acp:ID" for an agent of the ACP registry.
	Name string `json:"name"`
	// Command replaces the agent's program, for example ["/opt/claude"]. Empty
	// means the agent's usual name in PATH.
	Command []string `json:"command,omitempty"`
	// Model is the agent's own name of the model; empty leaves the choice to the agent.
	Model string `json:"model,omitempty"`
	// PermissionMode is the agent's mode at the start, for Claude Code "default", "acceptEdits",
	// "plan", ...; empty means that every action that needs permission asks for it. An ACP agent
	// without a mode that is known to ask must be given one.
	PermissionMode string `json:"permission_mode,omitempty"`
	// SystemPrompt is added to the agent's own.
	SystemPrompt string `json:"system_prompt,omitempty"`
	// MaxTurns ends a query after so many model turns; zero means no limit.
	MaxTurns int `json:"max_turns,omitempty"`
	// TrustWorkspace lets the agent use settings, hooks and MCP servers that are part of the
	// workspace. Leave it off for code you did not write: hooks and servers are commands that run
	// without asking.
	TrustWorkspace bool `json:"trust_workspace,omitempty"`
	// AllowOutside lets a permission request decide about reading and changing files outside of the
	// workspace. Without it the runner refuses such requests of the agent's file tools at once.
	// Commands are not covered: they are what the sandbox is for.
	AllowOutside bool `json:"allow_outside,omitempty"`
	// Env is added to the environment that the sandbox gives the agent.
	Env map[string]string `json:"env,omitempty"`
	// Config holds settings of the particular agent; for "script" it is a [Scenario].
	Config json.RawMessage `json:"config,omitempty"`
}

// SetupRequest asks setup-session to write what the agent needs before its first
// query. It may be sent again to the same session.
type SetupRequest struct {
	Session
	Profile Profile `json:"profile,omitzero"`
	// Files are written into the workspace.
	Files []WorkspaceFile `json:"files,omitempty"`
	// Transcript is restored so that the agent remembers the conversation. It may come from another
	// agent. Nil means a new conversation.
	Transcript *Transcript `json:"transcript,omitempty"`
}

// WorkspaceFile is a file that the workspace starts with.
type WorkspaceFile struct {
	Path string `json:"path"` // relative to the workspace
	// Content is the file's content, in base64 in JSON. Text is an alternative for texts.
	Content []byte `json:"content,omitempty"`
	Text    string `json:"text,omitempty"`
	// Mode are its permissions: 0755 in YAML, in JSON the same as a decimal
	// number, 493; zero means 0644.
	Mode fs.FileMode `json:"mode,omitempty"`
}

// Data returns the content, from Text or else from Content.
func (f WorkspaceFile) Data() []byte {
	if f.Text != "" {
		return []byte(f.Text)
	}
	return f.Content
}

// SetupData is the data of setup-session's result.
type SetupData struct {
	AgentVersion string `json:"agent_version,omitempty"`
	// Restored says how the agent got the transcript of another agent. It is zero if the agent got
	// none, or its own.
	Restored TranscriptRestored `json:"restored,omitzero"`
}

// Restored is the way in which an agent gets the conversation of another one.
type Restored string

// The ways, best first. All are bounded: they leave out the beginning of a long conversation and
// the middle of long tool outputs.
const (
	// RestoredNative: the agent imported the conversation with its own means.
	RestoredNative Restored = "native"
	// RestoredConverted: the conversation was written as a transcript in the agent's own format.
	RestoredConverted Restored = "converted"
	// RestoredSummary: a summary in words precedes the first prompt.
	RestoredSummary Restored = "summary"
)

// QueryRequest starts execute-query. The script starts the agent, or resumes it if the conversation
// has a transcript, and waits for prompts.
type QueryRequest struct {
	Session
	Profile Profile `json:"profile,omitzero"` // as setup-session got it
	// Prompt, if not empty, is the first prompt.
	Prompt string `json:"prompt,omitempty"`
	// PromptID becomes Event.QueryID of the first prompt's events.
	PromptID string `json:"prompt_id,omitempty"`
	// Attachments come with the first prompt, as [CheckAttachments] returns them.
	Attachments []Attachment `json:"attachments,omitempty"`
	// OutputSchema is the JSON schema of the first prompt's output; empty for none. The script gives it to
	// an agent that can be bound to a schema, and asks other agents for it in words. It does not check
	// the output: it reports [TypeQueryOutput] and waits for [ControlOutput], or the end of its input. A
	// script that reports query_completed without that is not asked again.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// Raw asks for the agent's own lines as well, as [TypeRaw] events.
	Raw bool `json:"raw,omitempty"`
	// InterruptGraceMS is the grace period in milliseconds: how long the agent may take to stop
	// after an interrupt before it is killed. Zero means [DefaultInterruptGrace].
	InterruptGraceMS int64 `json:"interrupt_grace_ms,omitempty"`
}

// DefaultInterruptGrace is the grace period after an interrupt if the request sets none. Package
// environment always uses it; no setting changes it.
const DefaultInterruptGrace = 5 * time.Second

// TranscriptRequest asks for the conversation as the agent keeps it.
type TranscriptRequest struct {
	Session
	// Events asks for the conversation as events as well. They are printed before the result.
	Events bool `json:"events,omitempty"`
}

// Transcript is an agent's own history, byte by byte. A session stores it and restores it in a new
// sandbox so that the agent remembers the conversation.
type Transcript struct {
	// Agent names the agent that wrote the history. Empty means the agent of the session. A session
	// that is set up with another agent's transcript continues that agent's conversation; see
	// [SetupData].Restored.
	Agent string `json:"agent,omitempty"`
	// Main is the conversation in the agent's own format; empty before the first query.
	Main      string               `json:"main"`
	Subagents []SubagentTranscript `json:"subagents,omitempty"`
}

// SubagentTranscript is the history of one subagent.
type SubagentTranscript struct {
	ID         string `json:"id"`
	Transcript string `json:"transcript"`
	// Meta is what the agent keeps beside the transcript, in its own format.
	Meta string `json:"meta,omitempty"`
}

// Control is a line for a running execute-query.
type Control struct {
	Type ControlType `json:"type"`
	// ID of the prompt (Event.QueryID), of the permission request that is answered, or of the output.
	ID string `json:"id,omitempty"`
	// Text of the prompt.
	Text string `json:"text,omitempty"`
	// Attachments of the prompt, as [CheckAttachments] returns them.
	Attachments []Attachment `json:"attachments,omitempty"`
	// OutputSchema of the prompt; see [QueryRequest].
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// Value is the mode, the model or the credential.
	Value string `json:"value,omitempty"`
	// Decision answers a permission request.
	Decision *PermissionDecision `json:"decision,omitempty"`
}

// ControlType is what a control line asks for.
type ControlType string

// The control lines.
const (
	ControlPrompt ControlType = "prompt" // ID, Text, Attachments, OutputSchema: run a query; queued while one runs
	// ControlInterrupt stops the query with that ID, running or queued. Without an ID it stops the
	// running query or, if none runs, the next one. The query completes with StopCancelled, unless
	// the agent does not stop within [QueryRequest].InterruptGraceMS and is killed.
	ControlInterrupt  ControlType = "interrupt"
	ControlPermission ControlType = "permission" // ID, Decision
	ControlCredential ControlType = "credential" // ID, Value
	ControlSetMode    ControlType = "set_mode"   // Value
	ControlSetModel   ControlType = "set_model"  // Value
	ControlShutdown   ControlType = "shutdown"   // ends the script and the running query now
	// ControlWithdraw withdraws the prompt with that ID, even if the prompt has not arrived yet.
	// Unless query_started was or will be printed for it, execute-query ends without running it.
	// The line may be the first one.
	ControlWithdraw ControlType = "withdraw"
	// ControlOutput answers the [TypeQueryOutput] with that ID. With a Text the agent gets that text in
	// another turn of the same query; without one the query ends. Only the first answer counts.
	ControlOutput ControlType = "output"
)

// PermissionDecision answers a permission request.
type PermissionDecision struct {
	// OptionID is the id of the chosen option. Empty means: choose by Kind.
	OptionID string `json:"option_id,omitempty"`
	// Kind chooses the first option of that kind.
	Kind PermissionKind `json:"kind,omitempty"`
	// Message tells the agent why the tool call was rejected.
	Message string `json:"message,omitempty"`
	// UpdatedInput replaces the tool's input; only with an allowing kind.
	UpdatedInput json.RawMessage `json:"updated_input,omitempty"`
	// Interrupt stops the query after a rejection.
	Interrupt bool `json:"interrupt,omitempty"`
	// Scope is ScopeAlways if the answer holds in later sessions too, or empty: then Kind says for how
	// long it holds.
	Scope string `json:"scope,omitempty"`
	// By names the person who decided, for PermissionResolved and the audit log. It is not part of
	// the JSON: a server names its caller.
	By string `json:"-"`
}

// Result is the last line that a script prints.
type Result struct {
	Type  string          `json:"type"` // [TypeResult]
	OK    bool            `json:"ok"`
	Data  json.RawMessage `json:"data,omitempty"`
	Error *ScriptFailure  `json:"error,omitempty"` // when not OK
}

// ScriptFailure says why a script failed. It implements error.
type ScriptFailure struct { //nolint:errname // on the wire it is data; ScriptError is the error around it
	Code    FailureCode `json:"code"`
	Message string      `json:"message"` // for people: what failed, why, and advice
	// HTTPStatus is the status that the model's API returned; with FailAPI.
	HTTPStatus int `json:"http_status,omitempty"`
	// Detail has what a program can use of the failure; nil for nothing.
	Detail *FailureDetail `json:"detail,omitempty"`
}

// FailureDetail is what programs can use of a failure.
type FailureDetail struct {
	// Violations say what does not match its schema; with FailParameters and FailOutput.
	Violations []Violation `json:"validation_errors,omitempty"`
	// ResultData is what a procedural executor that failed has printed: return_code, stdout and
	// stderr; or the result that does not match its schema.
	ResultData json.RawMessage `json:"result_data,omitempty"`
}

// Violation says where JSON does not match a schema.
type Violation struct {
	Path    string `json:"path"` // "$" is the whole, "$.name[0]" a part
	Message string `json:"message"`
	// SchemaPath is the keyword of the schema, such as "properties/name/type".
	SchemaPath string `json:"schema_path,omitempty"`
}

// Error returns the message.
func (f *ScriptFailure) Error() string { return f.Message }

// FailureCode is the kind of a failure, for programs.
type FailureCode string

// The failures.
const (
	FailInvalidRequest  FailureCode = "invalid_request"             // not JSON, an unknown field or name, a bad value
	FailProtocol        FailureCode = "protocol"                    // another protocol version
	FailUnknownAgent    FailureCode = "unknown_agent"               // no such agent in this runner
	FailAgentMissing    FailureCode = "agent_missing"               // the program is not installed
	FailAgentOld        FailureCode = "agent_old"                   // the program is older than Recipe.Minimum
	FailAgent           FailureCode = "agent"                       // the agent crashed, or broke its protocol
	FailAPI             FailureCode = "api"                         // the model's API refused or failed
	FailBudget          FailureCode = "budget"                      // tokens, money or requests reached a limit
	FailTimeout         FailureCode = "timeout"                     // a time limit has passed
	FailLimit           FailureCode = "limit"                       // what is stored of it reached a limit
	FailQuery           FailureCode = "query"                       // the agent reported an error and keeps running
	FailParameters      FailureCode = "parameter_validation_failed" // nothing was started
	FailOutput          FailureCode = "output_validation_failed"
	FailSessionNotFound FailureCode = "session_not_found"
	FailUnsupported     FailureCode = "unsupported" // the agent or sandbox does not support it
	// FailUnavailable: the sandbox or its backend does not answer or is gone. Scripts never report
	// it.
	FailUnavailable FailureCode = "unavailable"
	FailInternal    FailureCode = "internal"
)
