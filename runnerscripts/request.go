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

// Session is what every request says about the session it is for.
type Session struct {
	Protocol  int              `json:"protocol"`   // must be [Protocol]
	SessionID string           `json:"session_id"` // a UUID; also the agent's own session id where it takes one
	Agent     Agent            `json:"agent"`
	Paths     primitives.Paths `json:"paths"`
	// Gateway is how the agent reaches its models without a key; nil leaves that to the
	// agent's own settings.
	Gateway *Gateway `json:"gateway,omitempty"`
}

// Gateway is an HTTP server at a loopback address of the sandbox that passes requests on to
// models and puts in the keys, which are outside.
type Gateway struct {
	// URL is its address, for example "http://127.0.0.1:40001".
	URL string `json:"url"`
	// Token is what the agent sends where it would send its key. It is worth nothing
	// elsewhere.
	Token string `json:"token"`
	// APIs has the path of each API that is served, for example "/anthropic". URL and path
	// together are what the agent's setting for the base address of that API takes.
	APIs map[ModelAPI]string `json:"apis"`
	// Proxy says that it is an HTTP proxy, too, for hosts that the sandbox may reach.
	Proxy bool `json:"proxy,omitempty"`
	// Wait says that the program that serves it may end while the agent goes on, and another
	// one serve it then: meanwhile requests wait.
	Wait bool `json:"wait,omitempty"`
}

// Address returns the host and port of the URL.
func (g *Gateway) Address() string { return strings.TrimPrefix(g.URL, "http://") }

// NoProxy is what no proxy is asked for, as the variable NO_PROXY has it.
const NoProxy = "127.0.0.1,localhost,::1"

// ProxyVariables returns the variables by which commands find the proxy, empty where there is
// none. Its user and password are in its address, as most programs take them only there.
func (g *Gateway) ProxyVariables() map[string]string {
	vars := map[string]string{}
	if g == nil || !g.Proxy {
		return vars
	}
	address := "http://" + proxyUser + ":" + g.Token + "@" + g.Address()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		vars[name] = address
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		vars[name] = NoProxy
	}
	vars["NODE_USE_ENV_PROXY"] = "1"            // else Node's own clients ignore them
	vars["GIT_HTTP_PROXY_AUTHMETHOD"] = "basic" // else git asks without them first
	return vars
}

const proxyUser = "agentenv"

// ProxyCredential returns what requests to the proxy have after "Proxy-Authorization: Basic": the
// token in another form.
func (g *Gateway) ProxyCredential() string {
	return base64.StdEncoding.EncodeToString([]byte(proxyUser + ":" + g.Token))
}

// ModelAPI is the shape of a model's API.
type ModelAPI string

// The shapes. The base address ends before the version for Anthropic and Gemini, as in
// "https://api.anthropic.com", and after it for OpenAI, as in "https://api.openai.com/v1".
const (
	APIAnthropic ModelAPI = "anthropic" // Messages
	APIOpenAI    ModelAPI = "openai"    // Responses and Chat Completions
	APIGemini    ModelAPI = "gemini"    // generateContent
)

// Agent says which agent to run and how. It is both configuration (of
// environment.Config) and protocol.
type Agent struct {
	// Name chooses the agent: "script", "claude", ...
	Name string `json:"name"`
	// Command replaces the agent's program, for example ["/opt/claude"]. Empty
	// means the agent's usual name in PATH.
	Command []string `json:"command,omitempty"`
	// Model as the agent names it; empty leaves it to the agent.
	Model string `json:"model,omitempty"`
	// PermissionMode is the agent's mode at the start, for Claude Code
	// "default", "acceptEdits", "plan", ...; empty means that every action
	// that needs permission asks for it. An agent of ACP in which no mode is
	// known to ask must be given one.
	PermissionMode string `json:"permission_mode,omitempty"`
	// SystemPrompt is added to the agent's own.
	SystemPrompt string `json:"system_prompt,omitempty"`
	// MaxTurns ends a query after so many model turns; zero means no limit.
	MaxTurns int `json:"max_turns,omitempty"`
	// TrustWorkspace lets the agent use settings, hooks and MCP servers that
	// the workspace itself brings. Leave it off for code you did not write:
	// those are commands that run without asking.
	TrustWorkspace bool `json:"trust_workspace,omitempty"`
	// AllowOutside lets a permission request decide about reading and changing
	// files outside of the workspace. Without it such a request of the agent's
	// tools for files is refused at once. Commands are not covered: they are
	// what the sandbox is for.
	AllowOutside bool `json:"allow_outside,omitempty"`
	// Env is the agent's environment beside the sandbox's own.
	Env map[string]string `json:"env,omitempty"`
	// Config is for the agent alone; for "script" a [Scenario].
	Config json.RawMessage `json:"config,omitempty"`
}

// SetupRequest asks setup-session to write what the agent needs before its first
// query. It may be sent again to the same session.
type SetupRequest struct {
	Session
	Profile Profile `json:"profile,omitzero"`
	// Files are written into the workspace.
	Files []WorkspaceFile `json:"files,omitempty"`
	// Transcript is restored so that the agent remembers, another agent's too; nil for a
	// new conversation.
	Transcript *Transcript `json:"transcript,omitempty"`
}

// WorkspaceFile is a file that the workspace starts with.
type WorkspaceFile struct {
	Path string `json:"path"` // relative to the workspace
	// Content is what is in it, in base64 in JSON; Text is another way to say
	// it, for texts.
	Content []byte `json:"content,omitempty"`
	Text    string `json:"text,omitempty"`
	// Mode are its permissions: 0755 in YAML, in JSON the same as a decimal
	// number, 493; zero means 0644.
	Mode fs.FileMode `json:"mode,omitempty"`
}

// Data returns the content, however it was given.
func (f WorkspaceFile) Data() []byte {
	if f.Text != "" {
		return []byte(f.Text)
	}
	return f.Content
}

// SetupData is the data of setup-session's result.
type SetupData struct {
	AgentVersion string `json:"agent_version,omitempty"`
	// Restored says how the agent got the transcript of another agent; zero if it got none, or
	// its own.
	Restored TranscriptRestored `json:"restored,omitzero"`
}

// Restored is how an agent gets the conversation of another one.
type Restored string

// The ways, the best first. All of them are bounded: of a long conversation the beginning is
// left out, and of long outputs of tools the middle.
const (
	// RestoredNative: the agent has imported it with its own means.
	RestoredNative Restored = "native"
	// RestoredConverted: it was written as a transcript of the agent's own.
	RestoredConverted Restored = "converted"
	// RestoredSummary: it is put in words before the first prompt.
	RestoredSummary Restored = "summary"
)

// QueryRequest starts execute-query: the agent is started, or resumed where the
// conversation has a transcript, and waits for prompts.
type QueryRequest struct {
	Session
	Profile Profile `json:"profile,omitzero"` // as setup-session got it
	// Prompt, if not empty, is the first prompt.
	Prompt string `json:"prompt,omitempty"`
	// PromptID becomes Event.QueryID of the first prompt's events.
	PromptID string `json:"prompt_id,omitempty"`
	// Raw asks for the agent's own lines too, as [TypeRaw] events.
	Raw bool `json:"raw,omitempty"`
	// InterruptGraceMS is how many milliseconds the agent may take to stop after an
	// interrupt before it is killed. Zero means [DefaultInterruptGrace].
	InterruptGraceMS int64 `json:"interrupt_grace_ms,omitempty"`
}

// DefaultInterruptGrace is how long an agent may take to stop after an interrupt if the
// request does not say. Package environment always asks for it; no setting changes it.
const DefaultInterruptGrace = 5 * time.Second

// TranscriptRequest asks for the conversation as the agent keeps it.
type TranscriptRequest struct {
	Session
	// Events asks for the conversation as events too, printed before the
	// result.
	Events bool `json:"events,omitempty"`
}

// Transcript is an agent's own history, byte by byte. It is what is stored of a
// session, and what makes an agent remember in a new sandbox.
type Transcript struct {
	// Agent is the name of the agent whose history it is. Empty means the agent of the
	// session. Set up with the transcript of another agent, a session continues that one's
	// conversation; see [SetupData].Restored.
	Agent string `json:"agent,omitempty"`
	// Main is the conversation in the agent's own format; empty if there is
	// none yet.
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
	// ID of the prompt (Event.QueryID), or of the permission request that is answered.
	ID string `json:"id,omitempty"`
	// Text of the prompt.
	Text string `json:"text,omitempty"`
	// Value is the mode, the model or the credential.
	Value string `json:"value,omitempty"`
	// Decision answers a permission request.
	Decision *PermissionDecision `json:"decision,omitempty"`
}

// ControlType is what a control line asks for.
type ControlType string

// The control lines.
const (
	ControlPrompt ControlType = "prompt" // ID, Text: run a query; queued while one runs
	// ControlInterrupt stops the query of ID, whether it runs or is queued; without an
	// ID that which runs or is the next. It completes with StopCancelled, unless the
	// agent does not stop within [QueryRequest].InterruptGraceMS and is killed.
	ControlInterrupt  ControlType = "interrupt"
	ControlPermission ControlType = "permission" // ID, Decision
	ControlCredential ControlType = "credential" // ID, Value
	ControlSetMode    ControlType = "set_mode"   // Value
	ControlSetModel   ControlType = "set_model"  // Value
	ControlShutdown   ControlType = "shutdown"   // end now, the running query included
	// ControlWithdraw takes back the prompt of ID, or one that is still on its way: unless
	// its query_started was or will be printed, execute-query ends without it. It may be the
	// first line.
	ControlWithdraw ControlType = "withdraw"
)

// PermissionDecision answers a permission request.
type PermissionDecision struct {
	// OptionID is the chosen one of the request's options. Empty means: choose
	// by Kind.
	OptionID string `json:"option_id,omitempty"`
	// Kind chooses the first option of that kind.
	Kind PermissionKind `json:"kind,omitempty"`
	// Message tells the agent why it was rejected.
	Message string `json:"message,omitempty"`
	// UpdatedInput replaces the tool's input; only with an allowing kind.
	UpdatedInput json.RawMessage `json:"updated_input,omitempty"`
	// Interrupt stops the query after a rejection.
	Interrupt bool `json:"interrupt,omitempty"`
}

// Result is the last line that a script prints.
type Result struct {
	Type  string          `json:"type"` // [TypeResult]
	OK    bool            `json:"ok"`
	Data  json.RawMessage `json:"data,omitempty"`
	Error *ScriptFailure  `json:"error,omitempty"` // when not OK
}

// ScriptFailure is why a script could not do its work. It is an error.
type ScriptFailure struct { //nolint:errname // on the wire it is data; environment.ScriptError is the error around it
	Code    FailureCode `json:"code"`
	Message string      `json:"message"` // for people; starts with what they can do
	// HTTPStatus is what the model's API answered; with FailAPI.
	HTTPStatus int `json:"http_status,omitempty"`
}

// Error returns the message.
func (f *ScriptFailure) Error() string { return f.Message }

// FailureCode is the kind of a failure, for programs.
type FailureCode string

// The failures.
const (
	FailInvalidRequest  FailureCode = "invalid_request" // not JSON, an unknown field, a bad value, the name of what does not exist
	FailProtocol        FailureCode = "protocol"        // another protocol version
	FailUnknownAgent    FailureCode = "unknown_agent"   // no such agent in this runner
	FailAgentMissing    FailureCode = "agent_missing"   // its program is not installed in the sandbox
	FailAgentOld        FailureCode = "agent_old"       // its program is older than Recipe.Minimum
	FailAgent           FailureCode = "agent"           // it crashed, or broke its protocol
	FailAPI             FailureCode = "api"             // the model's API refused or failed
	FailBudget          FailureCode = "budget"          // tokens, money or requests have used up a limit that was set for it
	FailTimeout         FailureCode = "timeout"         // it took longer than was set for it
	FailQuery           FailureCode = "query"           // the agent ended the query with an error of its own; it goes on
	FailSessionNotFound FailureCode = "session_not_found"
	FailUnsupported     FailureCode = "unsupported" // the agent, or the sandbox, cannot do what was asked
	// FailUnavailable: the sandbox, or what it is made with, does not answer or is gone.
	// No script says it.
	FailUnavailable FailureCode = "unavailable"
	FailInternal    FailureCode = "internal"
)
