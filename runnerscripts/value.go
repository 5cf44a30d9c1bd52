package runnerscripts

// Value is a decoded payload: a pointer to the struct that belongs to the type of an event. No
// other type is a Value, so a type switch over a Value that names a wrong type does not compile.
type Value interface{ isValue() }

// Value returns the payload of an event, decoded:
//
//	switch v := ev.Value().(type) {
//	case *runnerscripts.ToolCall:
//		fmt.Println(v.Title)
//	case *runnerscripts.QueryCompleted:
//		fmt.Println(v.StopReason, v.Usage.TotalInput())
//	}
//
// Some types share a struct, as tool_call and tool_call_update do; Event.Type tells them apart.
// Value returns nil for a type without a struct, such as one that this version does not know, and
// for a payload that is malformed; [Payload] returns the error.
func (e Event) Value() Value {
	if k := eventKinds[e.Type]; k.value != nil {
		return k.value(e.Payload)
	}
	return nil
}

func (*AgentChanged) isValue()          {}
func (*Checkpoint) isValue()            {}
func (*CheckpointsPruned) isValue()     {}
func (*Forked) isValue()                {}
func (*ContentChunk) isValue()          {}
func (*EnvironmentInfo) isValue()       {}
func (*EnvironmentTerminated) isValue() {}
func (*ErrorInfo) isValue()             {}
func (*FileChange) isValue()            {}
func (*Log) isValue()                   {}
func (*ModeUpdate) isValue()            {}
func (*OptionsChanged) isValue()        {}
func (*PermissionRequest) isValue()     {}
func (*PermissionResolved) isValue()    {}
func (*Plan) isValue()                  {}
func (*Rewound) isValue()               {}
func (*QueryCompleted) isValue()        {}
func (*QueryFailed) isValue()           {}
func (*QueryOutput) isValue()           {}
func (*QueryStarted) isValue()          {}
func (*SessionInitialized) isValue()    {}
func (*SessionInfo) isValue()           {}
func (*SubagentCompleted) isValue()     {}
func (*SubagentStarted) isValue()       {}
func (*ToolCall) isValue()              {}
func (*TranscriptChanged) isValue()     {}
func (*TranscriptRestored) isValue()    {}
func (*UsageUpdate) isValue()           {}
