package session

import (
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// blockKey identifies a block. It includes the kind, so that a thought and a message with the
// same ID stay apart.
type blockKey struct {
	conversation string
	kind         BlockKind
	id           string
}

// Apply applies one event. It skips events whose Seq it has already seen, and events of unknown
// types.
func (c *Conversation) Apply(ev runnerscripts.Event) {
	if ev.Seq != 0 && ev.Seq <= c.LastSeq {
		return
	}
	c.apply(ev)
	switch ev.Type {
	case runnerscripts.TypeUserMessage:
		c.applyChunk(ev, BlockUser)
	case runnerscripts.TypeAgentMessage:
		c.applyChunk(ev, BlockAgent)
	case runnerscripts.TypeAgentThought:
		c.applyChunk(ev, BlockThought)
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		c.applyTool(ev)
	case runnerscripts.TypePlan:
		c.applyPlan(ev)
	case runnerscripts.TypeError:
		if p, ok := read[runnerscripts.ErrorInfo](c, ev); ok {
			b := c.add(ev, BlockError, "")
			b.Text, b.Code = p.Message, p.Code
		}
	case runnerscripts.TypeSubagentStarted, runnerscripts.TypeSubagentCompleted:
		c.applySubagent(ev)
	case runnerscripts.TypeQueryQueued, runnerscripts.TypeQueryStarted,
		runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
		c.applyEnd(ev)
	case runnerscripts.TypeFileCreated, runnerscripts.TypeFileModified,
		runnerscripts.TypeFileDeleted, runnerscripts.TypeFileRenamed:
		c.applyFile(ev)
	case runnerscripts.TypeCheckpoint:
		if len(c.marks) < len(c.Checkpoints) {
			c.marks = append(c.marks, len(c.Blocks))
		}
	case runnerscripts.TypeRewound:
		// Drop the messages after the checkpoint.
		if n := c.Checkpoint; n > 0 && n <= len(c.marks) {
			c.Blocks = c.Blocks[:min(c.marks[n-1], len(c.Blocks))]
			c.index = nil
		}
	}
}

// read decodes a payload, and counts invalid ones.
func read[T any](c *Conversation, ev runnerscripts.Event) (T, bool) {
	v, ok := decode[T](ev)
	if !ok {
		c.Unreadable++
	}
	return v, ok
}

func (c *Conversation) applyChunk(ev runnerscripts.Event, kind BlockKind) {
	p, ok := read[runnerscripts.ContentChunk](c, ev)
	if !ok {
		return
	}
	if p.Snapshot && p.Content == (runnerscripts.Content{Type: p.Content.Type}) {
		c.drop(ev, kind, p.BlockID)
		return
	}
	b := c.block(ev, kind, p.BlockID)
	if p.Snapshot {
		b.set("")
	}
	if p.Content.Type == "text" || p.Content.Type == "" {
		b.add(p.Content.Text)
		return
	}
	b.Content = append(b.Content, p.Content)
}

func (c *Conversation) applyTool(ev runnerscripts.Event) {
	p, ok := read[runnerscripts.ToolCall](c, ev)
	if !ok {
		return
	}
	b := c.block(ev, BlockTool, p.ToolCallID)
	if b.Tool == nil {
		b.Tool = &runnerscripts.ToolCall{ToolCallID: p.ToolCallID}
	}
	b.Tool.Update(p)
}

// applyPlan replaces the plan. After a user message it starts a new one.
func (c *Conversation) applyPlan(ev runnerscripts.Event) {
	p, ok := read[runnerscripts.Plan](c, ev)
	if !ok {
		return
	}
	for _, b := range slices.Backward(*c.thread(ev)) {
		if b.Kind == BlockUser {
			break
		}
		if b.Kind == BlockPlan {
			b.Plan = &p
			return
		}
	}
	c.add(ev, BlockPlan, "").Plan = &p
}

func (c *Conversation) applySubagent(ev runnerscripts.Event) {
	if ev.Type == runnerscripts.TypeSubagentStarted {
		p, ok := read[runnerscripts.SubagentStarted](c, ev)
		if !ok {
			return
		}
		// The event is repeated when more is known about the subagent.
		s := c.subagent(p.ToolCallID)
		setIf(&s.AgentID, p.AgentID)
		setIf(&s.Type, p.Type)
		setIf(&s.Description, p.Description)
		setIf(&s.Prompt, p.Prompt)
		return
	}
	p, ok := read[runnerscripts.SubagentCompleted](c, ev)
	if !ok {
		return
	}
	s := c.subagent(p.ToolCallID)
	setIf(&s.AgentID, p.AgentID)
	setIf(&s.Output, p.Output)
	setIf(&s.DurationMS, p.DurationMS)
	s.Status = SubagentCompleted
	if p.Status == string(SubagentFailed) {
		s.Status = SubagentFailed
	}
}

// applyEnd updates the status of a query.
func (c *Conversation) applyEnd(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeQueryQueued, runnerscripts.TypeQueryStarted:
		p, ok := read[runnerscripts.QueryStarted](c, ev)
		if !ok {
			return
		}
		q := c.query(ev)
		setIf(&q.Prompt, p.Prompt)
		if q.Attachments == nil {
			q.Attachments = p.Attachments
		}
		q.Time, q.Status = ev.Time, QueryQueued
		if ev.Type == runnerscripts.TypeQueryStarted {
			q.Status = QueryRunning
		}
	case runnerscripts.TypeQueryCompleted:
		if p, ok := read[runnerscripts.QueryCompleted](c, ev); ok {
			q := c.query(ev)
			q.Status, q.StopReason, q.DurationMS, q.Usage = QueryCompleted, p.StopReason, p.DurationMS, p.Usage
		}
	case runnerscripts.TypeQueryFailed:
		p, ok := read[runnerscripts.QueryFailed](c, ev)
		if !ok {
			return
		}
		q := c.query(ev)
		q.Status, q.Failure, q.DurationMS, q.Usage = QueryFailed, &p, p.DurationMS, p.Usage
		b := c.add(ev, BlockError, ev.QueryID)
		b.Text, b.Code = p.Message, p.Code
	}
}

func (c *Conversation) applyFile(ev runnerscripts.Event) {
	p, ok := read[runnerscripts.FileChange](c, ev)
	if !ok {
		return
	}
	if c.Files == nil {
		c.Files = make(map[string]runnerscripts.FileChange)
	}
	if ev.Type == runnerscripts.TypeFileDeleted {
		delete(c.Files, p.Path)
		return
	}
	if ev.Type == runnerscripts.TypeFileRenamed {
		delete(c.Files, p.From)
	}
	p.Content = nil
	c.Files[p.Path] = p
}

// block returns the block that an event extends, and creates it if necessary.
func (c *Conversation) block(ev runnerscripts.Event, kind BlockKind, id string) *Block {
	if id == "" {
		// Without an ID, only consecutive events belong together.
		blocks := *c.thread(ev)
		if n := len(blocks); n > 0 && blocks[n-1].Kind == kind && blocks[n-1].ID == "" && blocks[n-1].QueryID == ev.QueryID {
			return blocks[n-1]
		}
		return c.add(ev, kind, "")
	}
	if c.index == nil {
		c.reindex()
	}
	if b := c.index[blockKey{conversation(ev), kind, id}]; b != nil {
		return b
	}
	return c.add(ev, kind, id)
}

// add appends a new block to the conversation of an event.
func (c *Conversation) add(ev runnerscripts.Event, kind BlockKind, id string) *Block {
	b := &Block{Kind: kind, ID: id, QueryID: ev.QueryID, Time: ev.Time}
	thread := c.thread(ev)
	*thread = append(*thread, b)
	if c.index == nil {
		c.reindex()
	}
	if id != "" {
		c.index[blockKey{conversation(ev), kind, id}] = b
	}
	return b
}

// drop removes a withdrawn block.
func (c *Conversation) drop(ev runnerscripts.Event, kind BlockKind, id string) {
	thread := c.thread(ev)
	if id == "" {
		*thread = slices.DeleteFunc(*thread, func(b *Block) bool { return b.Kind == kind && b.ID == "" })
		return
	}
	if c.index == nil {
		c.reindex()
	}
	key := blockKey{conversation(ev), kind, id}
	b := c.index[key]
	if b == nil {
		return
	}
	delete(c.index, key)
	for i, other := range slices.Backward(*thread) {
		if other == b {
			*thread = slices.Delete(*thread, i, i+1)
			return
		}
	}
}

// reindex rebuilds the index of a cloned or decoded conversation.
func (c *Conversation) reindex() {
	c.index = make(map[blockKey]*Block)
	note := func(conversation string, blocks []*Block) {
		for _, b := range blocks {
			if b.ID != "" {
				c.index[blockKey{conversation, b.Kind, b.ID}] = b
			}
		}
	}
	note(runnerscripts.MainConversation, c.Blocks)
	for _, s := range c.Subagents {
		note(s.ToolCallID, s.Blocks)
	}
}

// thread returns the blocks of the conversation that an event belongs to.
func (c *Conversation) thread(ev runnerscripts.Event) *[]*Block {
	if mainConversation(ev) {
		return &c.Blocks
	}
	return &c.subagent(ev.ConversationID).Blocks
}

// subagent returns a subagent, and creates it if its start was not reported yet.
func (c *Conversation) subagent(toolCallID string) *Subagent {
	if c.agents == nil {
		c.agents = make(map[string]*Subagent)
		for _, s := range c.Subagents {
			c.agents[s.ToolCallID] = s
		}
	}
	if s := c.agents[toolCallID]; s != nil {
		return s
	}
	s := &Subagent{ToolCallID: toolCallID, Status: SubagentRunning}
	c.Subagents = append(c.Subagents, s)
	c.agents[toolCallID] = s
	return s
}

func (c *Conversation) query(ev runnerscripts.Event) *Query {
	for _, q := range slices.Backward(c.Queries) {
		if q.ID == ev.QueryID {
			return q
		}
	}
	q := &Query{ID: ev.QueryID, Time: ev.Time}
	c.Queries = append(c.Queries, q)
	return q
}

func conversation(ev runnerscripts.Event) string {
	if mainConversation(ev) {
		return runnerscripts.MainConversation
	}
	return ev.ConversationID
}
