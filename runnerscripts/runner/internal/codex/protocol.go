package codex

import "encoding/json"

// note has the common fields of notifications.
type note struct {
	ThreadID string `json:"threadId"`
	TurnID   string `json:"turnId"`
}

type turnNote struct {
	note
	Turn turn `json:"turn"`
}

// turn is the work on one prompt.
type turn struct {
	ID         string     `json:"id"`
	Status     string     `json:"status"`
	Error      *turnError `json:"error"`
	DurationMS int64      `json:"durationMs"`
}

// The statuses of ended turns.
const (
	turnDone        = "completed"
	turnInterrupted = "interrupted"
)

// turnError says why a turn failed.
type turnError struct {
	Message string          `json:"message"`
	Info    json.RawMessage `json:"codexErrorInfo"` // a kind, or an object keyed by it
	Details string          `json:"additionalDetails"`
}

func (e turnError) text() string {
	if e.Details != "" {
		return e.Message + ": " + e.Details
	}
	return e.Message
}

type itemNote struct {
	note
	Item          item  `json:"item"`
	StartedAtMS   int64 `json:"startedAtMs"`
	CompletedAtMS int64 `json:"completedAtMs"`
}

type deltaNote struct {
	note
	ItemID       string `json:"itemId"`
	Delta        string `json:"delta"`
	SummaryIndex int    `json:"summaryIndex"`
	ContentIndex int    `json:"contentIndex"`
}

type planNote struct {
	note
	Plan []planStep `json:"plan"`
}

type planStep struct {
	Step   string `json:"step"`
	Status string `json:"status"` // "pending", "inProgress", "completed"; in a rollout "in_progress"
}

type errorNote struct {
	note
	Error     turnError `json:"error"`
	WillRetry bool      `json:"willRetry"`
}

type warningNote struct {
	Message string `json:"message"`
	Summary string `json:"summary"`
}

type serverNote struct {
	Name  string `json:"name"`
	Error string `json:"error"` // why it did not start
}

type resolvedNote struct {
	note
	RequestID json.RawMessage `json:"requestId"`
}

type usageNote struct {
	note
	TokenUsage struct {
		Total              tokens `json:"total"`
		Last               tokens `json:"last"`
		ModelContextWindow int64  `json:"modelContextWindow"`
	} `json:"tokenUsage"`
}

// tokens has token counts. InputTokens includes the cached and the cache-write tokens.
type tokens struct {
	TotalTokens      int64 `json:"totalTokens"`
	InputTokens      int64 `json:"inputTokens"`
	CachedTokens     int64 `json:"cachedInputTokens"`
	CacheWriteTokens int64 `json:"cacheWriteInputTokens"`
	OutputTokens     int64 `json:"outputTokens"`
}

// item is a finished or running part of a turn. Only the fields of its type are set.
type item struct {
	Type string `json:"type"`
	ID   string `json:"id"`

	Text    string          `json:"text"`    // agentMessage, plan
	Summary []string        `json:"summary"` // reasoning
	Content json.RawMessage `json:"content"` // userMessage: inputs; reasoning: texts

	Status           string   `json:"status"`
	Command          string   `json:"command"` // commandExecution
	Cwd              string   `json:"cwd"`
	CommandActions   []action `json:"commandActions"`
	AggregatedOutput string   `json:"aggregatedOutput"`
	ExitCode         *int     `json:"exitCode"`

	Changes []change `json:"changes"` // fileChange

	Server    string          `json:"server"` // mcpToolCall
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Result    json.RawMessage `json:"result"`
	Error     json.RawMessage `json:"error"`

	Query string `json:"query"` // webSearch
	Path  string `json:"path"`  // imageView

	Fragments []struct {
		Text string `json:"text"`
	} `json:"fragments"` // hookPrompt

	Prompt            string   `json:"prompt"` // collabAgentToolCall
	ReceiverThreadIDs []string `json:"receiverThreadIds"`

	raw json.RawMessage
}

// UnmarshalJSON also keeps the raw item, which the translator reports for unknown types.
func (i *item) UnmarshalJSON(data []byte) error {
	type plain item
	if err := json.Unmarshal(data, (*plain)(i)); err != nil {
		return err
	}
	i.raw = append(json.RawMessage(nil), data...)
	return nil
}

// The types of items that have their own translation.
const (
	itemUser      = "userMessage"
	itemAgent     = "agentMessage"
	itemReasoning = "reasoning"
	itemPlan      = "plan"
	itemCommand   = "commandExecution"
	itemFiles     = "fileChange"
	itemMCP       = "mcpToolCall"
	itemSearch    = "webSearch"
	itemImage     = "imageView"
	itemCollab    = "collabAgentToolCall"
	itemHook      = "hookPrompt" // what a hook tells the agent to do
)

// toolSpawn is the tool of a collabAgentToolCall that starts a subagent.
const toolSpawn = "spawnAgent"

// The statuses of items.
const (
	statusInProgress = "inProgress"
	statusCompleted  = "completed"
)

// action is Codex's guess at what a part of a command does.
type action struct {
	Type    string `json:"type"` // "read", "listFiles", "search", "unknown"
	Command string `json:"command"`
	Path    string `json:"path"`
}

// change is the change of one file.
type change struct {
	Path string     `json:"path"`
	Kind changeKind `json:"kind"`
	// Diff is a unified diff without a header, or the text of a new or deleted file.
	Diff string `json:"diff"`
}

type changeKind struct {
	Type     string `json:"type"` // "add", "delete", "update"
	MovePath string `json:"move_path,omitempty"`
}

// input is a part of a prompt.
type input struct {
	Type string `json:"type"`
	Text string `json:"text"`
	URL  string `json:"url"`
	Path string `json:"path"`
	// ImageURL is the URL in a rollout.
	ImageURL string `json:"image_url"`
}
