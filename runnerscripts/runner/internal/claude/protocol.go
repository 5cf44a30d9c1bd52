package claude

import (
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// head has the fields of all lines of the program.
type head struct {
	Type    string `json:"type"`
	Subtype string `json:"subtype"`
}

// messageLine is an "assistant" or "user" line. Records of these types in a transcript spell
// some fields differently.
type messageLine struct {
	Type            string          `json:"type"`
	UUID            string          `json:"uuid"`
	Timestamp       time.Time       `json:"timestamp"`
	Message         message         `json:"message"`
	ParentToolUseID string          `json:"parent_tool_use_id"`
	ToolUseResult   json.RawMessage `json:"tool_use_result"`
	IsAPIError      bool            `json:"is_api_error_message"`
	Error           json.RawMessage `json:"error"` // with IsAPIError a text
}

// message is a message of the model's API.
type message struct {
	ID      string  `json:"id"`
	Model   string  `json:"model"`
	Content content `json:"content"`
	Usage   *usage  `json:"usage"`
}

// syntheticModel is the model of messages written by the program itself.
const syntheticModel = "<synthetic>"

// content is a list of blocks. In JSON a string may replace a list of one text block.
type content []block

func (c *content) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*c = content{{Type: blockText, Text: s}}
		return nil
	}
	return json.Unmarshal(data, (*[]block)(c))
}

// block is a content block; the fields of its type are set.
type block struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	Thinking string `json:"thinking,omitempty"`

	ID    string          `json:"id,omitempty"` // of a tool use
	Name  string          `json:"name,omitempty"`
	Input json.RawMessage `json:"input,omitempty"`

	ToolUseID string  `json:"tool_use_id,omitempty"` // of a tool result
	Content   content `json:"content,omitempty"`
	IsError   bool    `json:"is_error,omitempty"`

	Source *source `json:"source,omitempty"` // of an image or a document
	Title  string  `json:"title,omitempty"`  // of a document
}

type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type,omitempty"`
	Data      string `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
}

// The block types that are translated.
const (
	blockText       = "text"
	blockThinking   = "thinking"
	blockToolUse    = "tool_use"
	blockToolResult = "tool_result"
	blockImage      = "image"
	blockDocument   = "document"
)

// usage counts the tokens of a message.
type usage struct {
	InputTokens      int64 `json:"input_tokens"`
	OutputTokens     int64 `json:"output_tokens"`
	CacheReadTokens  int64 `json:"cache_read_input_tokens"`
	CacheWriteTokens int64 `json:"cache_creation_input_tokens"`
}

// streamLine is a "stream_event" line: a piece of an unfinished message.
type streamLine struct {
	ParentToolUseID string `json:"parent_tool_use_id"`
	Event           struct {
		Type         string  `json:"type"`
		Index        int     `json:"index"`
		Message      message `json:"message"`       // message_start
		ContentBlock block   `json:"content_block"` // content_block_start
		Delta        struct {
			Type     string `json:"type"`
			Text     string `json:"text"`
			Thinking string `json:"thinking"`
		} `json:"delta"`
		Usage *usage `json:"usage"` // message_delta
	} `json:"event"`
}

// systemLine is a "system" line of any subtype.
type systemLine struct {
	Subtype        string   `json:"subtype"`
	State          string   `json:"state"`          // session_state_changed
	PermissionMode string   `json:"permissionMode"` // init, status
	Model          string   `json:"model"`          // init
	Tools          []string `json:"tools"`          // init
	Version        string   `json:"claude_code_version"`

	MCPServers   []serverStatus `json:"mcp_servers"`   // init
	PluginErrors []pluginError  `json:"plugin_errors"` // init

	TaskID       string `json:"task_id"` // task_*
	TaskType     string `json:"task_type"`
	ToolUseID    string `json:"tool_use_id"`
	SubagentType string `json:"subagent_type"`
	Description  string `json:"description"`
	Prompt       string `json:"prompt"`
	Status       string `json:"status"`
	Summary      string `json:"summary"`
	Usage        struct {
		DurationMS int64 `json:"duration_ms"`
	} `json:"usage"`

	Attempt      int             `json:"attempt"` // api_retry
	MaxRetries   int             `json:"max_retries"`
	RetryDelayMS float64         `json:"retry_delay_ms"`
	ErrorStatus  int             `json:"error_status"`
	Error        json.RawMessage `json:"error"`
}

// The states of session_state_changed.
const stateIdle = "idle"

// resultLine ends a turn.
type resultLine struct {
	Subtype        string   `json:"subtype"`
	IsError        bool     `json:"is_error"`
	APIErrorStatus int      `json:"api_error_status"`
	TerminalReason string   `json:"terminal_reason"`
	StopReason     string   `json:"stop_reason"`
	Result         string   `json:"result"`
	Errors         []string `json:"errors"`
	// StructuredOutput matches the schema of the process.
	StructuredOutput json.RawMessage       `json:"structured_output"`
	TotalCostUSD     float64               `json:"total_cost_usd"`
	ModelUsage       map[string]modelUsage `json:"modelUsage"`
	// SinceLast is the usage of this turn alone; older versions do not report it.
	SinceLast map[string]modelUsage `json:"model_usage_since_last_result"`
	// apiError is from an earlier line.
	apiError string
}

// modelUsage is the usage of one model.
type modelUsage struct {
	InputTokens      int64   `json:"inputTokens"`
	OutputTokens     int64   `json:"outputTokens"`
	CacheReadTokens  int64   `json:"cacheReadInputTokens"`
	CacheWriteTokens int64   `json:"cacheCreationInputTokens"`
	CostUSD          float64 `json:"costUSD"`
	ContextWindow    int64   `json:"contextWindow"`
}

// lifecycleLine reports the state of a sent message.
type lifecycleLine struct {
	CommandUUID string `json:"command_uuid"`
	State       string `json:"state"`
}

// controlLine is a control_request, control_response or control_cancel_request,
// in either direction.
type controlLine struct {
	Type      string           `json:"type"`
	RequestID string           `json:"request_id,omitempty"`
	Request   json.RawMessage  `json:"request,omitempty"`
	Response  *controlResponse `json:"response,omitempty"`
}

type controlResponse struct {
	Subtype   string          `json:"subtype"` // "success" or "error"
	RequestID string          `json:"request_id"`
	Response  json.RawMessage `json:"response,omitempty"`
	Error     string          `json:"error,omitempty"`
}

// canUseTool is the program's request for permission to use a tool.
type canUseTool struct {
	Subtype     string             `json:"subtype"`
	ToolName    string             `json:"tool_name"`
	Input       json.RawMessage    `json:"input"`
	ToolUseID   string             `json:"tool_use_id"`
	Suggestions []permissionUpdate `json:"permission_suggestions"`
}

// permissionUpdate is a change of the program's permission rules. The driver sets its
// destination; the other fields are sent back unchanged.
type permissionUpdate map[string]json.RawMessage

func (u permissionUpdate) kind() string {
	var s string
	_ = json.Unmarshal(u["type"], &s) // an invalid type is an unknown kind
	return s
}

// permissionResult answers canUseTool.
type permissionResult struct {
	Behavior           string             `json:"behavior"` // "allow" or "deny"
	UpdatedInput       json.RawMessage    `json:"updatedInput,omitempty"`
	UpdatedPermissions []permissionUpdate `json:"updatedPermissions,omitempty"`
	Message            string             `json:"message,omitempty"`
	Interrupt          bool               `json:"interrupt,omitempty"`
}

// initialized is the reply to the initialize request.
type initialized struct {
	Commands []offeredCommand `json:"commands"`
	Agents   []offeredAgent   `json:"agents"`
}

// offeredCommand is a slash command or a skill.
type offeredCommand struct {
	Name         string `json:"name"`
	Description  string `json:"description"`
	ArgumentHint string `json:"argumentHint"`
}

// offeredAgent is a subagent.
type offeredAgent struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// userLine is a prompt that is sent.
type userLine struct {
	Type            string      `json:"type"`
	Message         userMessage `json:"message"`
	ParentToolUseID *string     `json:"parent_tool_use_id"`
	SessionID       string      `json:"session_id"`
	UUID            string      `json:"uuid"`
}

type userMessage struct {
	Role    string `json:"role"`
	Content any    `json:"content"` // a string, or content
}

// userContent returns the blocks of a prompt. The text comes last: the program looks for a slash command
// in the last block.
func userContent(text string, attachments []runnerscripts.Attachment) content {
	var c content
	for _, a := range attachments {
		data := source{Type: "base64", MediaType: a.MediaType, Data: base64.StdEncoding.EncodeToString(a.Data)}
		switch a.Feature() {
		case runnerscripts.FeatureImages:
			c = append(c, block{Type: blockImage, Source: &data})
		case runnerscripts.FeaturePDF:
			c = append(c, block{Type: blockDocument, Source: &data, Title: a.Name})
		default:
			c = append(c, block{Type: blockText, Text: agent.TextFile(a)})
		}
	}
	return append(c, block{Type: blockText, Text: text})
}
