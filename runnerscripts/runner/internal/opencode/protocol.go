package opencode

import (
	"encoding/json"
	"time"
)

// event is an event of the server.
type event struct {
	Type       string          `json:"type"`
	Properties json.RawMessage `json:"properties"`
}

// messageUpdated reports a message without its parts.
type messageUpdated struct {
	Info messageInfo `json:"info"`
}

// partUpdated reports the current state of a part.
type partUpdated struct {
	Part part `json:"part"`
}

// partDelta reports new text of a part.
type partDelta struct {
	SessionID string `json:"sessionID"`
	PartID    string `json:"partID"`
	Field     string `json:"field"`
	Delta     string `json:"delta"`
}

// partRemoved reports a removed part.
type partRemoved struct {
	PartID string `json:"partID"`
}

// sessionStatus reports the status of a session.
type sessionStatus struct {
	SessionID string `json:"sessionID"`
	Status    struct {
		Type    string `json:"type"` // "busy", "retry", "idle"
		Attempt int    `json:"attempt"`
		Message string `json:"message"`
		Next    int64  `json:"next"` // time of the next retry, in milliseconds since 1970
	} `json:"status"`
}

// sessionError reports that a query failed, sometimes without a message of the model.
type sessionError struct {
	SessionID string        `json:"sessionID"`
	Error     *messageError `json:"error"`
}

// permissionAsked is a request for permission to run a tool.
type permissionAsked struct {
	ID         string   `json:"id"`
	SessionID  string   `json:"sessionID"`
	Permission string   `json:"permission"` // the kind of action: "edit", "bash", ...
	Patterns   []string `json:"patterns"`   // the targets of the action
	Always     []string `json:"always"`     // what an answer "always" would allow
	Metadata   struct {
		Command  string `json:"command"`
		FilePath string `json:"filepath"`
		Files    []struct {
			FilePath string `json:"filePath"`
			MovePath string `json:"movePath"` // empty for a file that is not moved
		} `json:"files"`
	} `json:"metadata"`
	Tool *struct {
		CallID string `json:"callID"`
	} `json:"tool"`
}

// permissionReplied reports an answer to a request by any client.
type permissionReplied struct {
	RequestID string `json:"requestID"`
}

// questionAsked is a question by the agent's question tool.
type questionAsked struct {
	ID        string            `json:"id"`
	SessionID string            `json:"sessionID"`
	Questions []json.RawMessage `json:"questions"`
	Tool      *struct {
		CallID string `json:"callID"`
	} `json:"tool"`
}

// toast is a notice for the user.
type toast struct {
	Title   string `json:"title"`
	Message string `json:"message"`
	Variant string `json:"variant"` // "info", "success", "warning", "error"
}

// messageInfo is a message without its parts.
type messageInfo struct {
	ID         string        `json:"id"`
	SessionID  string        `json:"sessionID"`
	ParentID   string        `json:"parentID"`
	Role       string        `json:"role"`
	Finish     string        `json:"finish"`
	Error      *messageError `json:"error"`
	ModelID    string        `json:"modelID"`
	ProviderID string        `json:"providerID"`
	Time       span          `json:"time"`
}

const (
	roleUser      = "user"
	roleAssistant = "assistant"
)

// over reports whether the message is complete.
func (m messageInfo) over() bool { return m.Time.Completed != 0 || m.Error != nil }

// span holds the times of a message or part, in milliseconds since 1970.
type span struct {
	Created   int64 `json:"created"`
	Completed int64 `json:"completed"`
	Start     int64 `json:"start"`
	End       int64 `json:"end"`
}

// at converts a time of the program; 0 becomes the zero time.
func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// messageError is the error of a message or session.
type messageError struct {
	Name string `json:"name"`
	Data struct {
		Message    string `json:"message"`
		StatusCode int    `json:"statusCode"`
		ProviderID string `json:"providerID"`
	} `json:"data"`
}

// errAborted is the name of the error of an interrupted message.
const errAborted = "MessageAbortedError"

// part is a part of a message. Only the fields of its type are set.
type part struct {
	ID        string `json:"id"`
	SessionID string `json:"sessionID"`
	MessageID string `json:"messageID"`
	Type      string `json:"type"`
	Time      span   `json:"time"`

	Text      string `json:"text"`
	Synthetic bool   `json:"synthetic"` // the program's own text in a user's message
	Ignored   bool   `json:"ignored"`   // not for the model

	Tool   string    `json:"tool"`
	CallID string    `json:"callID"`
	State  toolState `json:"state"`

	Reason string  `json:"reason"`
	Tokens *tokens `json:"tokens"`
	Cost   float64 `json:"cost"`

	Prompt string `json:"prompt"` // of a subtask

	Mime string `json:"mime"`
	URL  string `json:"url"`
}

// The types of parts that are translated.
const (
	partText       = "text"
	partReasoning  = "reasoning"
	partTool       = "tool"
	partFile       = "file"
	partStepFinish = "step-finish"
	partSubtask    = "subtask" // of a slash command that a subagent runs
)

// toolState is the state of a tool call.
type toolState struct {
	Status      string          `json:"status"` // "pending", "running", "completed", "error"
	Input       json.RawMessage `json:"input"`
	Output      string          `json:"output"`
	Error       string          `json:"error"`
	Title       string          `json:"title"`
	Metadata    json.RawMessage `json:"metadata"`
	Time        span            `json:"time"`
	Attachments []part          `json:"attachments"`
}

const (
	toolRunning   = "running"
	toolCompleted = "completed"
	toolError     = "error"
)

// tokens is the token usage of a request to the model.
type tokens struct {
	Input     int64 `json:"input"` // without cached tokens
	Output    int64 `json:"output"`
	Reasoning int64 `json:"reasoning"`
	Cache     struct {
		Read  int64 `json:"read"`
		Write int64 `json:"write"`
	} `json:"cache"`
}

// message is a message with its parts, in the format of the server and of exports.
type message struct {
	Info  messageInfo `json:"info"`
	Parts []part      `json:"parts"`
}

// exported is the format that "opencode export" prints and "opencode import" reads.
type exported struct {
	Info     json.RawMessage `json:"info"`
	Messages json.RawMessage `json:"messages"`
}

// sessionInfo is the part of a session's description that matters here.
type sessionInfo struct {
	ID       string `json:"id"`
	ParentID string `json:"parentID"`
}

// modelRef names a model.
type modelRef struct {
	ProviderID string `json:"providerID"`
	ModelID    string `json:"modelID"`
}

// promptBody is the body of a request that sends a prompt.
type promptBody struct {
	MessageID string       `json:"messageID"`
	Model     *modelRef    `json:"model,omitempty"`
	Agent     string       `json:"agent,omitempty"`
	Parts     []promptPart `json:"parts"`
}

// commandBody is the body of a request that sends a slash command.
type commandBody struct {
	MessageID string       `json:"messageID"`
	Command   string       `json:"command"`
	Arguments string       `json:"arguments"`
	Model     string       `json:"model,omitempty"`
	Agent     string       `json:"agent,omitempty"`
	Parts     []promptPart `json:"parts,omitempty"` // files only
}

type promptPart struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Text string `json:"text,omitempty"`

	Mime     string `json:"mime,omitempty"` // of a file
	Filename string `json:"filename,omitempty"`
	URL      string `json:"url,omitempty"`
}

// replyBody is the body of the answer to a permission request.
type replyBody struct {
	Reply   string `json:"reply"` // "once", "always", "reject"
	Message string `json:"message,omitempty"`
}

// providerList lists the usable models.
type providerList struct {
	Providers []struct {
		ID     string `json:"id"`
		Models map[string]struct {
			Limit struct {
				Context int64 `json:"context"`
			} `json:"limit"`
			Capabilities struct {
				Input inputs `json:"input"`
			} `json:"capabilities"`
		} `json:"models"`
	} `json:"providers"`
}

// inputs says what a model takes beside text.
type inputs struct {
	Image bool `json:"image"`
	PDF   bool `json:"pdf"`
}

// agentInfo is one of the program's agents.
type agentInfo struct {
	Name   string `json:"name"`
	Mode   string `json:"mode"` // "primary", "subagent", "all"
	Hidden bool   `json:"hidden"`
}

// commandInfo is a slash command, in the format of the server and of ACP.
type commandInfo struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}
