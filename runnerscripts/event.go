package runnerscripts

import (
	"encoding/json"
	"time"
)

// Event is the one envelope of everything that happens in a session, from the
// runner to the user.
type Event struct {
	// Seq numbers the events of a session from 1 without a gap. It is given by
	// the session on the host; zero before that.
	Seq uint64 `json:"seq,omitempty"`
	// Type says what Payload is. Types that this version does not know are
	// carried through.
	Type EventType `json:"type"`
	// Payload is the JSON of the payload struct that belongs to the type; see
	// [Payload]. Never nil in a decoded event: an empty one is {}.
	Payload json.RawMessage `json:"payload,omitempty"`

	SessionID string `json:"session_id,omitempty"`
	// ConversationID is [MainConversation], or the id of the tool call that
	// started the subagent whose conversation it is.
	ConversationID string `json:"conversation_id,omitempty"`
	// QueryID is the prompt that the event belongs to, if any.
	QueryID string `json:"query_id,omitempty"`
	// Index numbers what the agent's runner says of a query, from 1: it is the same for
	// every reader of the query, so that one that has the first n events can go on with
	// the next. The host sets it; it is zero for what is not said by the runner during a
	// query. Indexes only grow, and what the host keeps to itself leaves gaps.
	Index int `json:"index,omitempty"`
	// Source is who made the event. The host sets it, and the SessionID and
	// QueryID: what a script says of them is not believed.
	Source Source `json:"source,omitempty"`
	// Time is when it happened, also if it is read back from a transcript.
	Time time.Time `json:"time"`
}

// MainConversation is the ConversationID of the agent itself.
const MainConversation = "main"

// Source is who made an event.
type Source string

// The sources.
const (
	SourceRunner      Source = "runner"      // live, from the agent
	SourceTranscript  Source = "transcript"  // read back from the agent's history
	SourceEnvironment Source = "environment" // the host's view of the sandbox
	SourceSession     Source = "session"
)

// Payload decodes the payload of an event into a struct of the caller's choice, or says
// why it cannot. [Event.Value] chooses the struct that belongs to the type.
func Payload[T any](e Event) (T, error) {
	var v T
	err := json.Unmarshal(e.Payload, &v)
	return v, err
}

// Text returns what the agent says with this event: the text of a
// [TypeAgentMessage]. It is empty for every other type.
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
	// TypePermissionResolved tells that a permission request is answered or
	// withdrawn.
	TypePermissionResolved EventType = "permission_resolved" // PermissionResolved

	TypeQueryQueued    EventType = "query_queued"    // QueryStarted; the session has accepted a prompt
	TypeQueryStarted   EventType = "query_started"   // QueryStarted
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
