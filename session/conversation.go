package session

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Conversation is the fold of a session's events: what was said and done, in order.
// [Conversation.Apply] accepts live events, stored events and the agent's own history; the same
// events give the same conversation.
//
// The zero value is not usable; see [NewConversation]. It must not be used by several goroutines
// at once; [Conversation.Clone] makes a copy for another goroutine.
type Conversation struct {
	State
	// Blocks is the conversation with the agent itself.
	Blocks []*Block `json:"blocks,omitempty"`
	// Subagents are the subagents of the agent, in the order of their first events.
	Subagents []*Subagent `json:"subagents,omitempty"`
	// Queries are the prompts and how they ended, oldest first.
	Queries []*Query `json:"queries,omitempty"`
	// Files maps the path of each changed file that still exists to its last change, without
	// content.
	Files map[string]runnerscripts.FileChange `json:"files,omitempty"`
	// Unreadable counts skipped events: their type is known but their payload is invalid.
	Unreadable int `json:"unreadable,omitempty"`

	index  map[blockKey]*Block
	agents map[string]*Subagent // by tool call
	marks  []int                // len(Blocks) at each checkpoint
}

// NewConversation returns an empty conversation.
func NewConversation() *Conversation {
	return &Conversation{State: newState()}
}

// Reduce folds events into a conversation. It stops at the first error, which it
// returns with the conversation so far.
// The sequence must end: [AgentSession.Events] does not by itself.
func Reduce(events iter.Seq2[runnerscripts.Event, error]) (*Conversation, error) {
	c := NewConversation()
	for ev, err := range events {
		if err != nil {
			return c, err
		}
		c.Apply(ev)
	}
	return c, nil
}

// Block is one thing in a conversation. Which fields are set depends on its
// kind.
type Block struct {
	Kind BlockKind `json:"kind"`
	// ID is the ID of the tool call, or of the message chunks. It is unique among the blocks of
	// its kind in one conversation.
	ID      string `json:"id,omitempty"`
	QueryID string `json:"query_id,omitempty"`
	// Time is the time of the block's first event.
	Time time.Time `json:"time"`

	// Text is the text of a message or a thought so far, or the message of an error.
	Text string `json:"text,omitempty"`
	// Content is what a message holds beside its text.
	Content []runnerscripts.Content `json:"content,omitempty"`
	// Tool is the tool call, all its updates merged.
	Tool *runnerscripts.ToolCall   `json:"tool,omitempty"`
	Plan *runnerscripts.Plan       `json:"plan,omitempty"`
	Code runnerscripts.FailureCode `json:"code,omitempty"` // of an error

	// text accumulates chunks without copying; Text is its content.
	text *strings.Builder
}

// BlockKind is the kind of a block.
type BlockKind string

// The kinds, with the fields that they use.
const (
	BlockUser    BlockKind = "user"    // Text, Content
	BlockAgent   BlockKind = "agent"   // Text, Content
	BlockThought BlockKind = "thought" // Text, Content
	BlockTool    BlockKind = "tool"    // Tool
	BlockPlan    BlockKind = "plan"    // Plan
	BlockError   BlockKind = "error"   // Text, Code
)

// Subagent is an agent that was started by a tool call, and its conversation.
type Subagent struct {
	// ToolCallID is the tool call that started it, and the ConversationID of
	// its events.
	ToolCallID  string         `json:"tool_call_id"`
	AgentID     string         `json:"agent_id,omitempty"`
	Type        string         `json:"type,omitempty"`
	Description string         `json:"description,omitempty"`
	Prompt      string         `json:"prompt,omitempty"`
	Status      SubagentStatus `json:"status"`
	Output      string         `json:"output,omitempty"`
	DurationMS  int64          `json:"duration_ms,omitempty"`
	Blocks      []*Block       `json:"blocks,omitempty"`
}

// SubagentStatus is how far a subagent is.
type SubagentStatus string

// The statuses.
const (
	SubagentRunning   SubagentStatus = "running"
	SubagentCompleted SubagentStatus = "completed"
	SubagentFailed    SubagentStatus = "failed"
)

// Query is a prompt and how it ended.
type Query struct {
	ID     string `json:"id"`
	Prompt string `json:"prompt"`
	// Attachments come with the prompt, without their contents.
	Attachments []runnerscripts.Attachment `json:"attachments,omitempty"`
	Status      QueryStatus                `json:"status"`
	// Time is when the query started, or was accepted if it has not started.
	Time time.Time `json:"time"`
	// StopReason is set when it has completed, Failure when it has failed.
	StopReason runnerscripts.StopReason   `json:"stop_reason,omitempty"`
	Failure    *runnerscripts.QueryFailed `json:"failure,omitempty"`
	DurationMS int64                      `json:"duration_ms,omitempty"`
	Usage      runnerscripts.Usage        `json:"usage,omitzero"`
}

// QueryStatus is how far a query is.
type QueryStatus string

// The statuses.
const (
	QueryQueued    QueryStatus = "queued"
	QueryRunning   QueryStatus = "running"
	QueryCompleted QueryStatus = "completed"
	QueryFailed    QueryStatus = "failed"
)

// Clone returns a deep copy of everything that Apply changes.
func (c *Conversation) Clone() *Conversation {
	n := *c
	n.State = c.clone()
	n.index, n.agents = nil, nil
	n.marks = slices.Clip(c.marks)
	n.Files = maps.Clone(c.Files)
	n.Blocks = cloneBlocks(c.Blocks)
	n.Subagents = make([]*Subagent, len(c.Subagents))
	for i, s := range c.Subagents {
		cp := *s
		cp.Blocks = cloneBlocks(s.Blocks)
		n.Subagents[i] = &cp
	}
	n.Queries = make([]*Query, len(c.Queries))
	for i, q := range c.Queries {
		cp := *q
		n.Queries[i] = &cp
	}
	return &n
}

func cloneBlocks(blocks []*Block) []*Block {
	out := make([]*Block, len(blocks))
	for i, b := range blocks {
		cp := *b
		cp.text = nil // a copied builder would share its memory
		cp.Content = slices.Clone(b.Content)
		if b.Tool != nil {
			t := *b.Tool
			cp.Tool = &t
		}
		out[i] = &cp
	}
	return out
}

// add appends to the block's text.
func (b *Block) add(text string) {
	if text == "" {
		return
	}
	if b.text == nil {
		b.text = new(strings.Builder)
		b.text.WriteString(b.Text)
	}
	b.text.WriteString(text)
	b.Text = b.text.String()
}

// set replaces the block's text and content.
func (b *Block) set(text string) {
	b.Text, b.text, b.Content = text, nil, nil
}
