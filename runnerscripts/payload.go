package runnerscripts

import (
	"bytes"
	"cmp"
	"encoding/json"

	"github.com/agentenv-dev/agentenv/primitives"
)

// ContentChunk is a piece of a message. Pieces with the same BlockID belong to
// one block and are concatenated.
type ContentChunk struct {
	// BlockID is unique in the session and the same live and in a transcript.
	BlockID string  `json:"blockId"`
	Content Content `json:"content"`
	// Snapshot says that Content is the whole block and replaces its earlier pieces. An empty
	// snapshot removes the block: the agent no longer has it.
	Snapshot bool `json:"snapshot,omitempty"`
}

// Content is an ACP content block. Only the fields of its Type are set.
type Content struct {
	Type     string `json:"type"` // "text", "image", "resource_link", ...
	Text     string `json:"text,omitempty"`
	Data     string `json:"data,omitempty"` // base64
	MimeType string `json:"mimeType,omitempty"`
	URI      string `json:"uri,omitempty"`
}

// ToolCall is a tool call or an update of one: fields that are not set did not
// change.
type ToolCall struct {
	ToolCallID string            `json:"toolCallId"`
	Title      string            `json:"title,omitempty"`
	Name       string            `json:"name,omitempty"` // the agent's own name of the tool
	Kind       ToolKind          `json:"kind,omitempty"`
	Status     ToolStatus        `json:"status,omitempty"`
	RawInput   json.RawMessage   `json:"rawInput,omitempty"`
	Content    []ToolCallContent `json:"content,omitempty"`
	Locations  []Location        `json:"locations,omitempty"`
	RawOutput  json.RawMessage   `json:"rawOutput,omitempty"`
	// ExitCode is the exit status of a command that has failed; zero if it is unknown, as agents
	// may not report it. Signal is the number of the signal that ended the command, and ExitCode
	// 128 more.
	ExitCode int `json:"exitCode,omitempty"`
	Signal   int `json:"signal,omitempty"`
}

// Update sets the fields of t that u sets, as a tool_call_update says what has changed since the
// tool_call. A raw null sets nothing.
func (t *ToolCall) Update(u ToolCall) {
	t.ToolCallID = cmp.Or(u.ToolCallID, t.ToolCallID)
	t.Title = cmp.Or(u.Title, t.Title)
	t.Name = cmp.Or(u.Name, t.Name)
	t.Kind = cmp.Or(u.Kind, t.Kind)
	t.Status = cmp.Or(u.Status, t.Status)
	t.ExitCode = cmp.Or(u.ExitCode, t.ExitCode)
	t.Signal = cmp.Or(u.Signal, t.Signal)
	if isSet(u.RawInput) {
		t.RawInput = u.RawInput
	}
	if isSet(u.RawOutput) {
		t.RawOutput = u.RawOutput
	}
	if u.Content != nil {
		t.Content = u.Content
	}
	if u.Locations != nil {
		t.Locations = u.Locations
	}
}

// isSet reports whether a raw field has a value.
func isSet(raw json.RawMessage) bool {
	return len(raw) > 0 && !bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

// ToolKind is the kind of a tool, as in ACP.
type ToolKind string

// The kinds.
const (
	ToolRead    ToolKind = "read"
	ToolEdit    ToolKind = "edit"
	ToolDelete  ToolKind = "delete"
	ToolMove    ToolKind = "move"
	ToolSearch  ToolKind = "search"
	ToolExecute ToolKind = "execute"
	ToolThink   ToolKind = "think"
	ToolFetch   ToolKind = "fetch"
	ToolOther   ToolKind = "other"
)

// ToolStatus is the progress of a tool call, as in ACP.
type ToolStatus string

// The statuses.
const (
	ToolPending    ToolStatus = "pending"
	ToolInProgress ToolStatus = "in_progress"
	ToolCompleted  ToolStatus = "completed"
	ToolFailed     ToolStatus = "failed"
)

// ToolCallContent is what a tool call shows: content or a diff.
type ToolCallContent struct {
	Type    string   `json:"type"` // "content" or "diff"
	Content *Content `json:"content,omitempty"`
	Path    string   `json:"path,omitempty"`
	OldText *string  `json:"oldText,omitempty"` // nil for a new file
	NewText string   `json:"newText,omitempty"`
}

// Location is a place in a file that a tool call touches.
type Location struct {
	Path string `json:"path"`
	Line int    `json:"line,omitempty"` // from 1
}

// Plan is the agent's list of its next steps. Each Plan replaces the one before.
type Plan struct {
	Entries []PlanEntry `json:"entries"`
}

// PlanEntry is one step of a plan.
type PlanEntry struct {
	Content  string `json:"content"`
	Priority string `json:"priority,omitempty"` // "high", "medium", "low"
	Status   string `json:"status,omitempty"`   // "pending", "in_progress", "completed"
}

// ModeUpdate reports the permission mode that is now in force.
type ModeUpdate struct {
	CurrentModeID string `json:"currentModeId"`
}

// Usage counts tokens and money of one query.
type Usage struct {
	InputTokens      int64 `json:"input_tokens,omitempty"` // without the cached ones; see TotalInput
	OutputTokens     int64 `json:"output_tokens,omitempty"`
	CacheReadTokens  int64 `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens int64 `json:"cache_write_tokens,omitempty"`
	// CostUSD is the cost that the agent reports; zero if it reports none.
	CostUSD float64 `json:"cost_usd,omitempty"`
}

// Add returns the sum of u and o.
func (u Usage) Add(o Usage) Usage {
	return Usage{
		InputTokens:      u.InputTokens + o.InputTokens,
		OutputTokens:     u.OutputTokens + o.OutputTokens,
		CacheReadTokens:  u.CacheReadTokens + o.CacheReadTokens,
		CacheWriteTokens: u.CacheWriteTokens + o.CacheWriteTokens,
		CostUSD:          u.CostUSD + o.CostUSD,
	}
}

// TotalInput returns the tokens that the model read, cached ones included.
func (u Usage) TotalInput() int64 { return u.InputTokens + u.CacheReadTokens + u.CacheWriteTokens }

// UsageUpdate reports how full the model's context is, as in ACP.
type UsageUpdate struct {
	Used int64 `json:"used"`
	Size int64 `json:"size,omitempty"`
}

// PermissionRequest asks whether a tool call may run.
type PermissionRequest struct {
	ID       string             `json:"id"` // identifies the answer
	ToolCall ToolCall           `json:"toolCall"`
	Options  []PermissionOption `json:"options"`
	// MayDeny is a deny rule of the host that the call may be about, which the host cannot judge. A user who sees the call
	// decides. The host sets it in each request; a script cannot.
	MayDeny string `json:"mayDeny,omitempty"`
	// Decided says that a rule or an earlier answer decides: a client need not ask its user, as permission_resolved follows. The
	// host sets it in each request; a script cannot.
	Decided bool `json:"decided,omitempty"`
}

// Allow returns the decision that allows the tool call once, or always if the request offers
// nothing else.
func (r PermissionRequest) Allow() PermissionDecision {
	return r.choose(AllowOnce, AllowAlways)
}

// Reject returns the decision that rejects the tool call once, or always if the request offers
// nothing else. message tells the agent why; it may be empty.
func (r PermissionRequest) Reject(message string) PermissionDecision {
	d := r.choose(RejectOnce, RejectAlways)
	d.Message = message
	return d
}

// choose returns the decision for the first of the kinds that the request offers.
func (r PermissionRequest) choose(kinds ...PermissionKind) PermissionDecision {
	for _, kind := range kinds {
		for _, o := range r.Options {
			if o.Kind == kind {
				return PermissionDecision{OptionID: o.OptionID, Kind: kind}
			}
		}
	}
	return PermissionDecision{Kind: kinds[0]}
}

// PermissionOption is one possible answer.
type PermissionOption struct {
	OptionID string         `json:"optionId"`
	Name     string         `json:"name"`
	Kind     PermissionKind `json:"kind"`
}

// PermissionKind is the kind of an answer, as in ACP.
type PermissionKind string

// The kinds.
const (
	AllowOnce    PermissionKind = "allow_once"
	AllowAlways  PermissionKind = "allow_always"
	RejectOnce   PermissionKind = "reject_once"
	RejectAlways PermissionKind = "reject_always"
)

// Allows reports whether the answer lets the tool run.
func (k PermissionKind) Allows() bool { return k == AllowOnce || k == AllowAlways }

// Effect describes an answer of this kind in a few words, such as "allow once". It returns "" for
// an unknown kind.
func (k PermissionKind) Effect() string {
	switch k {
	case AllowOnce:
		return "allow once"
	case AllowAlways:
		return "allow for this session"
	case RejectOnce:
		return "reject once"
	case RejectAlways:
		return "reject for this session"
	}
	return ""
}

// PermissionResolved reports how a permission request ended.
type PermissionResolved struct {
	ID string `json:"id"`
	// Kind is the answer; empty if the request was withdrawn.
	Kind   PermissionKind `json:"kind,omitempty"`
	Reason string         `json:"reason,omitempty"` // such as ReasonAnswered
	// Rule is the rule that decided, as in the configuration; empty if none did.
	Rule string `json:"rule,omitempty"`
	// Scope says for how long the answer holds, if the host keeps it: ScopeOnce, ScopeSession or
	// ScopeAlways.
	Scope string `json:"scope,omitempty"`
	// By is the PermissionDecision.By of the answer.
	By string `json:"by,omitempty"`
}

// Why a permission request ended.
const (
	ReasonAnswered  = "answered"
	ReasonRule      = "rule"      // a rule of the configuration decided, which Rule names
	ReasonMode      = "mode"      // no rule matched, and the mode of the configuration decided
	ReasonSession   = "session"   // an earlier answer decided, which holds for the session
	ReasonAlways    = "always"    // an earlier answer decided, which holds always
	ReasonTimeout   = "timeout"   // it was rejected because no answer came in time
	ReasonCancelled = "cancelled" // it was withdrawn, or its query ended
)

// How long the answer to a permission request holds.
const (
	ScopeOnce    = "once"
	ScopeSession = "session"
	ScopeAlways  = "always" // in later sessions of the user with the same project and agent
)

// QueryStarted reports that the agent works on a prompt or, with TypeQueryQueued, that the session
// has accepted it.
type QueryStarted struct {
	Prompt string `json:"prompt"`
	// Attachments come with the prompt. Their contents are not part of the event.
	Attachments []Attachment `json:"attachments,omitempty"`
	// OutputSchema is that of the prompt; see [QueryRequest].
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
}

// QueryOutput offers the output of a query that has an OutputSchema to the host, at the end of each turn of the
// agent. The query goes on: the host answers with a [ControlOutput] line, and does not pass the event on.
type QueryOutput struct {
	// ID names the output in the answer.
	ID string `json:"id"`
	// ResultData is the output if the agent ended its turn with JSON of its own. Empty means that the
	// output is in its last message.
	ResultData json.RawMessage `json:"result_data,omitempty"`
}

// QueryCompleted ends a query that the agent completed or that was cancelled.
type QueryCompleted struct {
	StopReason StopReason `json:"stop_reason"`
	DurationMS int64      `json:"duration_ms"`
	// Usage is the agent's usage for the query. It includes what the agent used by itself since the
	// query before: Claude Code, for one, starts working again when a background command ends.
	Usage Usage `json:"usage"`
	// ResultData is the result as JSON: of an executor that ended its turn with one, or of an agent
	// that was asked for output of a schema. Empty means that there is only text.
	ResultData json.RawMessage `json:"result_data,omitempty"`
}

// StopReason is why an agent stopped, as in ACP.
type StopReason string

// The reasons.
const (
	StopEndTurn     StopReason = "end_turn"
	StopMaxTokens   StopReason = "max_tokens"
	StopMaxRequests StopReason = "max_turn_requests"
	StopRefusal     StopReason = "refusal"
	StopCancelled   StopReason = "cancelled"
)

// QueryFailed ends a query that failed.
type QueryFailed struct {
	Code       FailureCode `json:"code"`
	Message    string      `json:"message"`
	HTTPStatus int         `json:"http_status,omitempty"` // with FailAPI
	DurationMS int64       `json:"duration_ms"`
	Usage      Usage       `json:"usage,omitzero"`
	// Detail is that of the [ScriptFailure].
	Detail *FailureDetail `json:"detail,omitempty"`
}

// EnvironmentInfo describes the sandbox.
type EnvironmentInfo struct {
	ID      string `json:"id,omitempty"`
	Backend string `json:"backend,omitempty"`
	// Isolation says how a ready sandbox is isolated from the machine.
	Isolation primitives.Isolation `json:"isolation,omitempty"`
	// Workspace is the path of the workspace in a ready sandbox.
	Workspace string `json:"workspace,omitempty"`
	Status    string `json:"status,omitempty"` // a primitives.Status
	Message   string `json:"message,omitempty"`
}

// EnvironmentTerminated reports why the sandbox ended.
type EnvironmentTerminated struct {
	Reason string `json:"reason"` // "manual", "idle", "unhealthy", "expired", "forked", "moved"
}

// FileChange is a change in the workspace.
type FileChange struct {
	Path string `json:"path"`           // relative to the workspace
	From string `json:"from,omitempty"` // old path of a renamed file
	// PathBytes and FromBytes are Path and From if these are not UTF-8, which is all that a text of
	// JSON can hold; else nil. In Go, Path and From always are the names.
	PathBytes []byte `json:"path_bytes,omitempty"`
	FromBytes []byte `json:"from_bytes,omitempty"`
	Size      int64  `json:"size,omitempty"`
	// Content is the file's content if it is text and the user asked for it.
	Content *string `json:"content,omitempty"`
	// Omitted says why Content is missing: "binary", "too_large", "unreadable".
	Omitted string `json:"omitted,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *FileChange) UnmarshalJSON(data []byte) error {
	type plain FileChange // without this method
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	if len(c.PathBytes) > 0 {
		c.Path = string(c.PathBytes)
	}
	if len(c.FromBytes) > 0 {
		c.From = string(c.FromBytes)
	}
	return nil
}

// TranscriptChanged reports that the agent has a new transcript.
type TranscriptChanged struct {
	// Transcript is the new transcript. A session leaves it out of its events, which would
	// otherwise repeat the whole conversation after each query, and stores it with the next
	// Checkpoint.
	Transcript Transcript `json:"transcript,omitzero"`
	Size       int64      `json:"size,omitempty"` // bytes of all parts
}

// Checkpoint reports that the session has stored the state that a new sandbox starts with: the
// files of the workspace and the agent's transcript.
type Checkpoint struct {
	// Number counts the checkpoints of the session, from 1.
	Number int `json:"number"`
	// Parent is the preceding checkpoint of the conversation: the last one, or the one that the
	// session was rewound to. Zero means none.
	Parent int              `json:"parent,omitempty"`
	Reason CheckpointReason `json:"reason"`
	// QueryID and Prompt belong to the last query. Prompt is shortened for lists. Both are empty
	// before the first query.
	QueryID string `json:"query_id,omitempty"`
	Prompt  string `json:"prompt,omitempty"`
	// Agent is the agent whose history Transcript is.
	Agent string `json:"agent,omitempty"`
	// Transcript and Workspace name the stored data. Empty means that nothing is stored.
	Transcript string `json:"transcript,omitempty"`
	Workspace  string `json:"workspace,omitempty"`
	// Path is the path that Workspace had in its sandbox.
	Path string `json:"path,omitempty"`
	// Files and Bytes are the number of files of the workspace and their size.
	Files int   `json:"files,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
	// Stored is how many bytes of files the checkpoint has that the ones before do not: at most this much it has added
	// to the store.
	Stored int64 `json:"stored,omitempty"`
	// Unsteady names at most 10 files that changed whenever they were read, so that their stored contents may be a mix
	// of several.
	Unsteady []string `json:"unsteady,omitempty"`
	// Stale says why Workspace is that of an earlier checkpoint, so that this one has no files. Empty means that
	// Workspace is current. FilesOf is the number of the earlier checkpoint; zero for none.
	Stale   string `json:"stale,omitempty"`
	FilesOf int    `json:"files_of,omitempty"`
}

// CheckpointReason says why a checkpoint was taken.
type CheckpointReason string

// The reasons.
const (
	CheckpointUpload   CheckpointReason = "upload"   // the user has written the workspace, before the first sandbox
	CheckpointStart    CheckpointReason = "start"    // the first sandbox is ready, and its files were not uploaded
	CheckpointQuery    CheckpointReason = "query"    // a query has ended
	CheckpointPeriodic CheckpointReason = "periodic" // a query runs for long
	CheckpointManual   CheckpointReason = "manual"   // the user asked for it
	CheckpointEnd      CheckpointReason = "end"      // the sandbox is about to end
)

// Rewound reports that the conversation and the workspace have returned to a checkpoint.
type Rewound struct {
	Checkpoint int `json:"checkpoint"`
}

// CheckpointsPruned reports that what only these checkpoints needed is removed from the store.
type CheckpointsPruned struct {
	Numbers []int `json:"numbers"`
	Freed   int64 `json:"freed,omitempty"` // bytes of files
}

// Forked reports that the events before it are a copy of another session's.
type Forked struct {
	From string `json:"from"` // the ID of that session
}

// TranscriptRestored reports that the agent remembers the conversation of an earlier sandbox. The
// zero value means that the agent got its own transcript.
type TranscriptRestored struct {
	// From is the agent whose conversation this agent continues, if it is another one. Way is how
	// this agent got that conversation.
	From string   `json:"from,omitempty"`
	Way  Restored `json:"way,omitempty"`
	// Reason says why the agent got only a summary. It is empty if this kind of agent takes nothing
	// else.
	Reason string `json:"reason,omitempty"`
}

// AgentChanged reports that another agent continues the session. Settings of the last agent, such
// as its model, no longer apply.
type AgentChanged struct {
	Agent string `json:"agent"`
	From  string `json:"from"`
}

// SubagentStarted reports that a tool call started a subagent. The subagent's events carry the
// ToolCallID as their ConversationID.
type SubagentStarted struct {
	ToolCallID  string `json:"tool_call_id"`
	AgentID     string `json:"agent_id,omitempty"` // SubagentTranscript.ID, if known
	Type        string `json:"type,omitempty"`
	Description string `json:"description,omitempty"`
	Prompt      string `json:"prompt,omitempty"`
}

// SubagentCompleted reports that a subagent ended.
type SubagentCompleted struct {
	ToolCallID string `json:"tool_call_id"`
	AgentID    string `json:"agent_id,omitempty"`
	Status     string `json:"status"` // "completed", "failed"
	Output     string `json:"output,omitempty"`
	DurationMS int64  `json:"duration_ms,omitempty"`
}

// SessionInitialized reports what the agent offers in this session.
type SessionInitialized struct {
	Agent        string   `json:"agent"`
	AgentVersion string   `json:"agent_version,omitempty"`
	Model        string   `json:"model,omitempty"`
	Mode         string   `json:"mode,omitempty"`
	Tools        []string `json:"tools,omitempty"`
	Models       []Model  `json:"models,omitempty"` // to choose from, if the agent lists them
	Resumed      bool     `json:"resumed,omitempty"`
}

// Model is a model that an agent offers.
type Model struct {
	ID   string `json:"id"` // as [Agent].Model takes it
	Name string `json:"name,omitempty"`
}

// SessionInfo reports what the agent calls the session. Empty fields have not changed.
type SessionInfo struct {
	Title   string `json:"title,omitempty"`
	Summary string `json:"summary,omitempty"`
}

// OptionsChanged reports the options now in force or, from the session, the options that were
// requested.
type OptionsChanged struct {
	Model string `json:"model,omitempty"`
	Mode  string `json:"mode,omitempty"`
}

// Log is a diagnostic message.
type Log struct {
	Level   string `json:"level"` // "debug", "info", "warn", "error"
	Message string `json:"message"`
	// Code says that the message is about a failure after which the agent continues by itself:
	// FailAPI for a model's API that the agent asks again. Otherwise it is empty.
	Code FailureCode `json:"code,omitempty"`
	// HTTPStatus is the status that the API returned, with FailAPI; zero if unknown.
	HTTPStatus int `json:"http_status,omitempty"`
	// Stream is "stderr" for a line that an executor has printed to standard error,
	// else empty.
	Stream string          `json:"stream,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
}

// ErrorInfo is something that went wrong without ending the query.
type ErrorInfo struct {
	Code    FailureCode `json:"code,omitempty"`
	Message string      `json:"message"`
}
