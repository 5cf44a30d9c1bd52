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
}

// eventKinds is the one place that says which payload belongs to which type. It
// is never changed.
var eventKinds = map[EventType]eventKind{
	TypeUserMessage:        kindOf[ContentChunk](TypeUserMessage),
	TypeAgentMessage:       kindOf[ContentChunk](TypeAgentMessage),
	TypeAgentThought:       kindOf[ContentChunk](TypeAgentThought),
	TypeToolCall:           kindOf[ToolCall](TypeToolCall),
	TypeToolCallUpdate:     kindOf[ToolCall](TypeToolCallUpdate),
	TypePlan:               kindOf[Plan](TypePlan),
	TypeCommands:           kindOf[json.RawMessage](TypeCommands),
	TypeModeUpdate:         kindOf[ModeUpdate](TypeModeUpdate),
	TypeUsageUpdate:        kindOf[UsageUpdate](TypeUsageUpdate),
	TypePermissionRequest:  kindOf[PermissionRequest](TypePermissionRequest),
	TypePermissionResolved: kindOf[PermissionResolved](TypePermissionResolved),

	TypeQueryQueued:    kindOf[QueryStarted](TypeQueryQueued),
	TypeQueryStarted:   kindOf[QueryStarted](TypeQueryStarted),
	TypeQueryCompleted: kindOf[QueryCompleted](TypeQueryCompleted),
	TypeQueryFailed:    kindOf[QueryFailed](TypeQueryFailed),

	TypeEnvironmentCreating:   kindOf[EnvironmentInfo](TypeEnvironmentCreating),
	TypeEnvironmentReady:      kindOf[EnvironmentInfo](TypeEnvironmentReady),
	TypeEnvironmentHealth:     kindOf[EnvironmentInfo](TypeEnvironmentHealth),
	TypeEnvironmentError:      kindOf[ErrorInfo](TypeEnvironmentError),
	TypeEnvironmentTerminated: kindOf[EnvironmentTerminated](TypeEnvironmentTerminated),

	TypeFileCreated:  kindOf[FileChange](TypeFileCreated),
	TypeFileModified: kindOf[FileChange](TypeFileModified),
	TypeFileDeleted:  kindOf[FileChange](TypeFileDeleted),
	TypeFileRenamed:  kindOf[FileChange](TypeFileRenamed),

	TypeTranscriptChanged:  kindOf[TranscriptChanged](TypeTranscriptChanged),
	TypeTranscriptRestored: kindOf[struct{}](TypeTranscriptRestored),

	TypeSubagentStarted:   kindOf[SubagentStarted](TypeSubagentStarted),
	TypeSubagentCompleted: kindOf[SubagentCompleted](TypeSubagentCompleted),

	TypeSessionInitialized: kindOf[SessionInitialized](TypeSessionInitialized),
	TypeSessionIdle:        kindOf[struct{}](TypeSessionIdle),
	TypeOptionsChanged:     kindOf[OptionsChanged](TypeOptionsChanged),

	TypeLog:   kindOf[Log](TypeLog),
	TypeError: kindOf[ErrorInfo](TypeError),
	TypeRaw:   kindOf[json.RawMessage](TypeRaw),
}

func kindOf[T any](t EventType) eventKind {
	return eventKind{typ: t, payload: reflect.TypeFor[T]()}
}

// EventTypes returns the types that this version knows, sorted.
func EventTypes() []EventType {
	return slices.Sorted(maps.Keys(eventKinds))
}

// PayloadType returns the struct that the payload of a type decodes into, or
// json.RawMessage where its shape is somebody else's. For an unknown type it is
// nil.
func PayloadType(t EventType) reflect.Type { return eventKinds[t].payload }
