package runnerscripts

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// eventKind is one row of the table of events.
type eventKind struct {
	typ     EventType
	payload reflect.Type
	value   func(json.RawMessage) Value // nil if the payload has no struct
	host    bool                        // only the host makes such events
}

// eventKinds is the one place that says which payload belongs to which type, and
// which types a script may not print. It is never changed.
var eventKinds = map[EventType]eventKind{
	TypeUserMessage:        kindOf[ContentChunk](TypeUserMessage),
	TypeAgentMessage:       kindOf[ContentChunk](TypeAgentMessage),
	TypeAgentThought:       kindOf[ContentChunk](TypeAgentThought),
	TypeToolCall:           kindOf[ToolCall](TypeToolCall),
	TypeToolCallUpdate:     kindOf[ToolCall](TypeToolCallUpdate),
	TypePlan:               kindOf[Plan](TypePlan),
	TypeCommands:           rawKind[json.RawMessage](TypeCommands, false),
	TypeModeUpdate:         kindOf[ModeUpdate](TypeModeUpdate),
	TypeUsageUpdate:        kindOf[UsageUpdate](TypeUsageUpdate),
	TypePermissionRequest:  kindOf[PermissionRequest](TypePermissionRequest),
	TypePermissionResolved: kindOf[PermissionResolved](TypePermissionResolved),

	TypeQueryQueued:    hostKind[QueryStarted](TypeQueryQueued),
	TypeQueryStarted:   kindOf[QueryStarted](TypeQueryStarted),
	TypeQueryOutput:    kindOf[QueryOutput](TypeQueryOutput),
	TypeQueryCompleted: kindOf[QueryCompleted](TypeQueryCompleted),
	TypeQueryFailed:    kindOf[QueryFailed](TypeQueryFailed),

	TypeEnvironmentCreating:   hostKind[EnvironmentInfo](TypeEnvironmentCreating),
	TypeEnvironmentReady:      hostKind[EnvironmentInfo](TypeEnvironmentReady),
	TypeEnvironmentHealth:     hostKind[EnvironmentInfo](TypeEnvironmentHealth),
	TypeEnvironmentError:      hostKind[ErrorInfo](TypeEnvironmentError),
	TypeEnvironmentTerminated: hostKind[EnvironmentTerminated](TypeEnvironmentTerminated),

	TypeFileCreated:  hostKind[FileChange](TypeFileCreated),
	TypeFileModified: hostKind[FileChange](TypeFileModified),
	TypeFileDeleted:  hostKind[FileChange](TypeFileDeleted),
	TypeFileRenamed:  hostKind[FileChange](TypeFileRenamed),

	TypeTranscriptChanged:  hostKind[TranscriptChanged](TypeTranscriptChanged),
	TypeTranscriptRestored: hostKind[TranscriptRestored](TypeTranscriptRestored),
	TypeCheckpoint:         hostKind[Checkpoint](TypeCheckpoint),
	TypeRewound:            hostKind[Rewound](TypeRewound),
	TypeForked:             hostKind[Forked](TypeForked),
	TypeCheckpointsPruned:  hostKind[CheckpointsPruned](TypeCheckpointsPruned),

	TypeSubagentStarted:   kindOf[SubagentStarted](TypeSubagentStarted),
	TypeSubagentCompleted: kindOf[SubagentCompleted](TypeSubagentCompleted),

	TypeSessionInitialized: kindOf[SessionInitialized](TypeSessionInitialized),
	TypeSessionIdle:        rawKind[struct{}](TypeSessionIdle, true),
	TypeOptionsChanged:     kindOf[OptionsChanged](TypeOptionsChanged),
	TypeSessionInfo:        kindOf[SessionInfo](TypeSessionInfo),
	TypeAgentChanged:       hostKind[AgentChanged](TypeAgentChanged),

	TypeLog:   kindOf[Log](TypeLog),
	TypeError: kindOf[ErrorInfo](TypeError),
	TypeRaw:   rawKind[json.RawMessage](TypeRaw, false),
}

func kindOf[T any, P interface {
	*T
	Value
}](t EventType) eventKind {
	return eventKind{typ: t, payload: reflect.TypeFor[T](), value: func(data json.RawMessage) Value {
		v := P(new(T))
		if json.Unmarshal(data, v) != nil {
			return nil
		}
		return v
	}}
}

func hostKind[T any, P interface {
	*T
	Value
}](t EventType) eventKind {
	k := kindOf[T, P](t)
	k.host = true
	return k
}

// rawKind returns the row of a type whose payload is not a struct of this package.
func rawKind[T any](t EventType, host bool) eventKind {
	return eventKind{typ: t, payload: reflect.TypeFor[T](), host: host}
}

// HostOnly reports whether only the host makes events of a type. If a script prints one
// nevertheless, it is reported as a [TypeLog] event that shows it.
func HostOnly(t EventType) bool { return eventKinds[t].host }

// EventTypes returns the types that this version knows, sorted.
func EventTypes() []EventType {
	return slices.Sorted(maps.Keys(eventKinds))
}

// PayloadType returns the struct that the payload of a type decodes into, or
// json.RawMessage for a payload in the agent's own format. It returns nil for an unknown
// type.
func PayloadType(t EventType) reflect.Type { return eventKinds[t].payload }
