package runnerscripts

import (
	"encoding/json"
	"time"
)

// Event is the one envelope of everything that happens in a session, from the
// runner to the user.
type Event struct {
	// Seq numbers the events of a session from 1 without a gap. The session on the host sets it;
	// before that it is zero.
	Seq uint64 `json:"seq,omitempty"`
	// Type says what Payload is. Events of unknown types are passed through.
	Type EventType `json:"type"`
	// Payload is the JSON of the payload struct that belongs to the type; see [Payload]. It is
	// never nil in a decoded event: an empty payload is {}.
	Payload json.RawMessage `json:"payload,omitempty"`

	SessionID string `json:"session_id,omitempty"`
	// ConversationID is [MainConversation], or the id of the tool call that started the subagent
	// that the event belongs to.
	ConversationID string `json:"conversation_id,omitempty"`
	// QueryID is the id of the prompt that the event belongs to, if any.
	QueryID string `json:"query_id,omitempty"`
	// Index numbers the events that the agent's runner prints for a query, from 1. All readers of
	// the query see the same indexes, so a reader that has the first n events can continue with the
	// next. The host sets Index; it is zero for events that the runner does not print during a
	// query. Indexes only grow. Events that the host does not pass on leave gaps.
	Index int `json:"index,omitempty"`
	// Source is the component that made the event. The host sets Source, SessionID and QueryID, and
	// does not trust what a script prints for them.
	Source Source `json:"source,omitempty"`
	// Time is when the event happened, even if the event is read back from a transcript.
	Time time.Time `json:"time"`
}

// MainConversation is the ConversationID of the agent itself.
const MainConversation = "main"

// Source names the component that made an event.
type Source string

// The sources.
const (
	SourceRunner      Source = "runner"      // live, from the agent
	SourceTranscript  Source = "transcript"  // read back from the agent's history
	SourceEnvironment Source = "environment" // the host's view of the sandbox
	SourceSession     Source = "session"
)

// Payload decodes the payload of an event into a T. [Event.Value] chooses the struct that belongs
// to the type.
func Payload[T any](e Event) (T, error) {
	var v T
	err := json.Unmarshal(e.Payload, &v)
	return v, err
}

// Text returns the text of a [TypeAgentMessage]. It returns "" for every other type.
func (e Event) Text() string {
	if e.Type != TypeAgentMessage {
		return ""
	}
	c, err := Payload[ContentChunk](e)
	if err != nil {
		return ""
	}
	return c.Content.Text
}

// EventType names a kind of event.
type EventType string

// EndsQuery reports whether an event of the type is the last one of its query.
func (t EventType) EndsQuery() bool { return t == TypeQueryCompleted || t == TypeQueryFailed }

// The types, each with its payload.
const (
	// The conversation: names and payloads of the Agent Client Protocol.
	TypeUserMessage       EventType = "user_message_chunk"        // ContentChunk
	TypeAgentMessage      EventType = "agent_message_chunk"       // ContentChunk
	TypeAgentThought      EventType = "agent_thought_chunk"       // ContentChunk
	TypeToolCall          EventType = "tool_call"                 // ToolCall
	TypeToolCallUpdate    EventType = "tool_call_update"          // ToolCall; only changed fields are set
	TypePlan              EventType = "plan"                      // Plan
	TypeCommands          EventType = "available_commands_update" // as in ACP
	TypeModeUpdate        EventType = "current_mode_update"       // ModeUpdate
	TypeUsageUpdate       EventType = "usage_update"              // UsageUpdate
	TypePermissionRequest EventType = "request_permission"        // PermissionRequest
	// TypePermissionResolved reports that a permission request was answered or withdrawn.
	TypePermissionResolved EventType = "permission_resolved" // PermissionResolved

	TypeQueryQueued    EventType = "query_queued"    // QueryStarted; the session has accepted a prompt
	TypeQueryStarted   EventType = "query_started"   // QueryStarted
	TypeQueryOutput    EventType = "query_output"    // QueryOutput; for the host alone
	TypeQueryCompleted EventType = "query_completed" // QueryCompleted
	TypeQueryFailed    EventType = "query_failed"    // QueryFailed

	TypeEnvironmentCreating   EventType = "environment_creating"   // EnvironmentInfo
	TypeEnvironmentReady      EventType = "environment_ready"      // EnvironmentInfo
	TypeEnvironmentHealth     EventType = "environment_health"     // EnvironmentInfo
	TypeEnvironmentError      EventType = "environment_error"      // ErrorInfo
	TypeEnvironmentTerminated EventType = "environment_terminated" // EnvironmentTerminated

	TypeFileCreated  EventType = "file_created"  // FileChange
	TypeFileModified EventType = "file_modified" // FileChange
	TypeFileDeleted  EventType = "file_deleted"  // FileChange
	TypeFileRenamed  EventType = "file_renamed"  // FileChange

	TypeTranscriptChanged  EventType = "transcript_changed"  // TranscriptChanged
	TypeTranscriptRestored EventType = "transcript_restored" // TranscriptRestored
	TypeCheckpoint         EventType = "checkpoint"          // Checkpoint
	TypeRewound            EventType = "rewound"             // Rewound
	TypeForked             EventType = "forked"              // Forked
	TypeCheckpointsPruned  EventType = "checkpoints_pruned"  // CheckpointsPruned

	TypeSubagentStarted   EventType = "subagent_started"   // SubagentStarted
	TypeSubagentCompleted EventType = "subagent_completed" // SubagentCompleted

	TypeSessionInitialized EventType = "session_initialized" // SessionInitialized
	TypeSessionIdle        EventType = "session_idle"        // {}
	TypeOptionsChanged     EventType = "options_changed"     // OptionsChanged
	TypeSessionInfo        EventType = "session_info_update" // SessionInfo
	TypeAgentChanged       EventType = "agent_changed"       // AgentChanged

	TypeLog   EventType = "log"   // Log
	TypeError EventType = "error" // ErrorInfo
	TypeRaw   EventType = "raw"   // the agent's own line
)

// TypeResult is the type of a script's last line; it is not an event.
const TypeResult = "result"
