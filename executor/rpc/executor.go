package rpc

import "context"

// The methods of an executor.
const (
	MethodPing          = "ping"
	MethodExecutePrompt = "execute_prompt"
	MethodShutdown      = "shutdown"
)

// Caller sends requests to an executor: a [Conn], a [Remote] or a [Process].
type Caller interface {
	Call(ctx context.Context, method string, params, result any) error
}

// Prompt are the parameters of execute_prompt.
type Prompt struct {
	// SessionToken is what the executor sends with its own requests.
	SessionToken string `json:"session_token"`
	// AgenticTool names the agent that the executor runs, such as claude-code; empty leaves it to the
	// executor.
	AgenticTool    string   `json:"agentic_tool,omitempty"`
	Prompt         string   `json:"prompt"`
	CWD            string   `json:"cwd,omitempty"`
	Tools          []string `json:"tools,omitempty"`
	PermissionMode string   `json:"permission_mode,omitempty"`
	// TimeoutMS is how long the executor may take, in milliseconds; zero means no limit.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// Result is the result of execute_prompt.
type Result struct {
	Status       string     `json:"status"` // completed, failed or cancelled
	MessageCount int        `json:"message_count"`
	TokenUsage   TokenUsage `json:"token_usage,omitzero"`
}

// TokenUsage counts tokens.
type TokenUsage struct {
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
}

// Ping asks an executor whether it answers.
func Ping(ctx context.Context, c Caller) error { return c.Call(ctx, MethodPing, struct{}{}, nil) }

// ExecutePrompt sends a prompt and waits for its end. When ctx is done, the executor is asked to cancel
// it.
func ExecutePrompt(ctx context.Context, c Caller, p Prompt) (Result, error) {
	var r Result
	err := c.Call(ctx, MethodExecutePrompt, p, &r)
	return r, err
}

// Shutdown asks an executor to end.
func Shutdown(ctx context.Context, c Caller) error {
	return c.Call(ctx, MethodShutdown, struct{}{}, nil)
}
