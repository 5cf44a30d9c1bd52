package session

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// State is the state of a session: the fold of its events. A program that has the events can
// compute it.
type State struct {
	ID    string `json:"id,omitempty"`
	Agent string `json:"agent,omitempty"`
	// Title is the agent's title for the session, else the first prompt, as one line of at most
	// 80 characters. Empty before the first prompt.
	Title string `json:"title,omitempty"`
	// Summary is the agent's summary of its work; empty if it provides none.
	Summary string `json:"summary,omitempty"`
	// Tools are the names of the tools that the agent offers to its model, and Models the
	// models that SetOptions accepts. They are empty if the agent does not report them: codex,
	// gemini and acp do not report tools, claude and codex do not report models.
	Tools  []string              `json:"tools,omitempty"`
	Models []runnerscripts.Model `json:"models,omitempty"`
	// Initialized says that the agent has reported what it offers: what is empty then, it does not report.
	Initialized bool `json:"initialized,omitempty"`
	// Model and Mode are the current values as reported by the agent; empty if it does not
	// report them.
	Model string `json:"model,omitempty"`
	Mode  string `json:"mode,omitempty"`
	// Options are the values set with SetOptions. They also apply to later sandboxes.
	Options Options `json:"options,omitzero"`

	Environment EnvironmentState `json:"environment"`
	// Query is the running query; nil if there is none.
	Query *QueryState `json:"query,omitempty"`
	// Queued are the accepted prompts that have not started, oldest first.
	Queued []QueryState `json:"queued,omitempty"`
	// Pending are the permission requests without an answer, oldest first.
	Pending []runnerscripts.PermissionRequest `json:"pending,omitempty"`
	// Usage is the sum over all queries.
	Usage runnerscripts.Usage `json:"usage,omitzero"`
	// Inherited is the part of Usage of the session that this one was forked from.
	Inherited runnerscripts.Usage `json:"inherited,omitzero"`
	// ContextUsed and ContextSize are the use and the size of the model's context in tokens;
	// zero if the agent does not report them.
	ContextUsed int64 `json:"context_used,omitempty"`
	ContextSize int64 `json:"context_size,omitempty"`
	// LastSeq is the Seq of the last event.
	LastSeq uint64 `json:"last_seq"`
	// Size is about how many bytes the session's events and checkpoints have added to the store,
	// before it compressed them.
	Size int64 `json:"size,omitempty"`

	// Checkpoints are the session's checkpoints, oldest first.
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	// Checkpoint is the number of the checkpoint that a new sandbox starts from; zero if there
	// is none.
	Checkpoint int `json:"checkpoint,omitempty"`
	// Unsaved says that a query has started since that checkpoint.
	Unsaved bool `json:"unsaved,omitempty"`

	// hostRequests are the pending permission requests that the program itself made, not the agent.
	// They end with the program.
	hostRequests []string
	// failed says that the last query failed.
	failed bool
	// attached are the digests of all attachments.
	attached []store.Digest
	// recent are the last queries, oldest first, so that a prompt that is sent again is not accepted again.
	recent []acceptedQuery
}

// acceptedQuery is a query whose prompt was accepted.
type acceptedQuery struct {
	ID  string `json:"id"`
	Seq uint64 `json:"seq"` // of its query_queued event
}

// maxRecent is how many queries State.recent has.
const maxRecent = 64

// Options are the mutable settings of a session. An empty field is not changed.
type Options struct {
	Model string `json:"model,omitempty"`
	Mode  string `json:"mode,omitempty"` // the permission mode, by the agent's own name
}

// EnvironmentState is the state of the session's sandbox.
type EnvironmentState struct {
	Status EnvironmentStatus `json:"status"`
	ID     string            `json:"id,omitempty"`
	// Backend is the kind of sandbox.
	Backend string `json:"backend,omitempty"`
	// Isolation is the isolation of the last ready sandbox; empty if there was none.
	Isolation primitives.Isolation `json:"isolation,omitempty"`
	// Workspace is the path of the workspace in the last ready sandbox, which the next one has, too, if it
	// can. It is empty if there was none, and in a fork that cannot have the path beside its parent.
	Workspace string `json:"workspace,omitempty"`
	// Message is the error, or why the sandbox ended.
	Message string `json:"message,omitempty"`
	// Starts counts the sandboxes so far, including the first.
	Starts int `json:"starts,omitempty"`

	readySeq uint64    // Seq of the environment_ready event
	creating time.Time // time of the environment_creating event
}

// EnvironmentStatus is the lifecycle state of a session's sandbox.
type EnvironmentStatus string

// The statuses.
const (
	EnvironmentNone       EnvironmentStatus = "none" // no prompt yet
	EnvironmentCreating   EnvironmentStatus = "creating"
	EnvironmentReady      EnvironmentStatus = "ready"
	EnvironmentError      EnvironmentStatus = "error" // creation failed; the next prompt tries again
	EnvironmentTerminated EnvironmentStatus = "terminated"
)

// QueryState is a query that is queued or running.
type QueryState struct {
	ID     string `json:"id"`
	Prompt string `json:"prompt"`
	// Attachments come with the prompt. Their contents are in the store of the session.
	Attachments []runnerscripts.Attachment `json:"attachments,omitempty"`
	// OutputSchema is that of the prompt; empty for none.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// Time is when the query started, or was accepted if it has not started.
	Time time.Time `json:"time"`
	// Seq is the Seq of its first event, and Index the last Index of its events.
	Seq   uint64 `json:"seq,omitempty"`
	Index int    `json:"index,omitempty"`
	// Size is about how many bytes of events were stored since it started.
	Size int64 `json:"size,omitempty"`
}

func newState() State {
	return State{Environment: EnvironmentState{Status: EnvironmentNone}}
}

// clone returns a copy that shares no mutable data.
func (s State) clone() State {
	s.Queued = slices.Clone(s.Queued)
	s.Pending, s.hostRequests = slices.Clone(s.Pending), slices.Clone(s.hostRequests)
	s.Checkpoints, s.recent = slices.Clip(s.Checkpoints), slices.Clone(s.recent)
	s.attached = slices.Clip(s.attached)
	if s.Query != nil {
		q := *s.Query
		s.Query = &q
	}
	return s
}

// decode reads a payload; an empty one is the zero value.
func decode[T any](ev runnerscripts.Event) (T, bool) {
	var v T
	if len(ev.Payload) == 0 {
		return v, true
	}
	err := json.Unmarshal(ev.Payload, &v)
	return v, err == nil
}

// apply applies one event. It ignores events that it does not understand.
func (s *State) apply(ev runnerscripts.Event) {
	if ev.Seq != 0 {
		s.LastSeq = ev.Seq
	}
	if ev.SessionID != "" {
		s.ID = ev.SessionID
	}
	s.count(ev)
	if q := s.query(ev.QueryID); q != nil && ev.Index > q.Index {
		q.Index = ev.Index
	}
	switch ev.Type {
	case runnerscripts.TypeQueryQueued, runnerscripts.TypeQueryStarted,
		runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
		s.applyQuery(ev)
	case runnerscripts.TypeEnvironmentCreating, runnerscripts.TypeEnvironmentReady,
		runnerscripts.TypeEnvironmentError, runnerscripts.TypeEnvironmentTerminated:
		s.Environment.apply(ev)
	case runnerscripts.TypePermissionRequest:
		if p, ok := decode[runnerscripts.PermissionRequest](ev); ok {
			s.dropPending(p.ID)
			s.Pending = append(s.Pending, p)
			if ev.Source == runnerscripts.SourceEnvironment {
				s.hostRequests = append(s.hostRequests, p.ID)
			}
		}
	case runnerscripts.TypePermissionResolved:
		if p, ok := decode[runnerscripts.PermissionResolved](ev); ok {
			s.dropPending(p.ID)
		}
	case runnerscripts.TypeSessionInitialized:
		if p, ok := decode[runnerscripts.SessionInitialized](ev); ok {
			s.Initialized = true
			setIf(&s.Agent, p.Agent)
			setIf(&s.Model, p.Model)
			setIf(&s.Mode, p.Mode)
			if p.Tools != nil {
				s.Tools = p.Tools
			}
			if p.Models != nil {
				s.Models = p.Models
			}
		}
	case runnerscripts.TypeSessionInfo:
		if p, ok := decode[runnerscripts.SessionInfo](ev); ok && mainConversation(ev) {
			setIf(&s.Title, line(p.Title))
			setIf(&s.Summary, p.Summary)
		}
	case runnerscripts.TypeModeUpdate:
		if p, ok := decode[runnerscripts.ModeUpdate](ev); ok {
			setIf(&s.Mode, p.CurrentModeID)
		}
	case runnerscripts.TypeUsageUpdate:
		if p, ok := decode[runnerscripts.UsageUpdate](ev); ok && mainConversation(ev) {
			s.ContextUsed = p.Used
			setIf(&s.ContextSize, p.Size)
		}
	case runnerscripts.TypeOptionsChanged:
		s.applyOptions(ev)
	case runnerscripts.TypeCheckpoint, runnerscripts.TypeRewound, runnerscripts.TypeCheckpointsPruned:
		s.applyCheckpoint(ev)
	case runnerscripts.TypeForked:
		s.Inherited = s.Usage
		if s.Environment.Isolation == primitives.IsolationNone {
			s.Environment.Workspace = "" // on the machine, where the parent has the path
		}
	case runnerscripts.TypeAgentChanged:
		if p, ok := decode[runnerscripts.AgentChanged](ev); ok {
			s.Agent, s.Model, s.Mode, s.Options = p.Agent, "", "", Options{}
			s.Tools, s.Models, s.Initialized = nil, nil, false
			s.ContextUsed, s.ContextSize = 0, 0
		}
	}
}

func (s *State) applyOptions(ev runnerscripts.Event) {
	p, ok := decode[runnerscripts.OptionsChanged](ev)
	if !ok {
		return
	}
	if ev.Source == runnerscripts.SourceSession { // the user's request: the agent may refuse it
		setIf(&s.Options.Model, p.Model)
		setIf(&s.Options.Mode, p.Mode)
		return
	}
	setIf(&s.Model, p.Model)
	setIf(&s.Mode, p.Mode)
}

func (s *State) applyQuery(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeQueryQueued:
		if p, ok := decode[runnerscripts.QueryStarted](ev); ok {
			s.Queued = append(s.Queued, QueryState{ID: ev.QueryID, Prompt: p.Prompt, Attachments: p.Attachments, OutputSchema: p.OutputSchema, Time: ev.Time, Seq: ev.Seq})
			for _, a := range p.Attachments {
				s.attached = append(s.attached, store.Digest(a.Digest))
				s.Size += max(a.Size, 0)
			}
			s.recent = append(s.recent[max(0, len(s.recent)+1-maxRecent):], acceptedQuery{ev.QueryID, ev.Seq})
			s.name(p.Prompt)
		}
		return
	case runnerscripts.TypeQueryStarted:
		started := QueryState{ID: ev.QueryID, Seq: ev.Seq, Index: ev.Index}
		if q := s.query(ev.QueryID); q != nil {
			started = *q
		}
		s.dropQuery(ev.QueryID)
		if p, ok := decode[runnerscripts.QueryStarted](ev); ok {
			started.Prompt, started.OutputSchema, started.Time = p.Prompt, p.OutputSchema, ev.Time
			if started.Attachments == nil { // else the digests are known
				started.Attachments = p.Attachments
			}
			s.Query, s.Unsaved = &started, true
			s.name(p.Prompt)
		}
		return
	}
	s.dropQuery(ev.QueryID)
	s.failed = ev.Type == runnerscripts.TypeQueryFailed
	// Both ends of a query carry its usage under the same name.
	if p, ok := decode[struct {
		Usage runnerscripts.Usage `json:"usage"`
	}](ev); ok {
		s.Usage = s.Usage.Add(p.Usage)
	}
}

// accepted returns the Seq of the query_queued event of one of the last queries; zero if it is none of
// them.
func (s *State) accepted(id string) uint64 {
	for _, q := range s.recent {
		if q.ID == id {
			return q.Seq
		}
	}
	return 0
}

// query returns the queued or running query with this ID; nil if there is none.
func (s *State) query(id string) *QueryState {
	if s.Query != nil && s.Query.ID == id {
		return s.Query
	}
	for i := range s.Queued {
		if s.Queued[i].ID == id {
			return &s.Queued[i]
		}
	}
	return nil
}

// name gives the session a title if it has none.
func (s *State) name(prompt string) {
	if s.Title == "" {
		s.Title = line(prompt)
	}
}

// line shortens a text to one line of at most 80 characters.
func line(text string) string {
	const most = 80
	words := []rune(strings.Join(strings.Fields(text), " "))
	if len(words) > most {
		return string(words[:most-1]) + "…"
	}
	return string(words)
}

func (s *State) dropQuery(id string) {
	s.Queued = slices.DeleteFunc(s.Queued, func(q QueryState) bool { return q.ID == id })
	if s.Query != nil && s.Query.ID == id {
		s.Query = nil
	}
}

func (s *State) dropPending(id string) {
	s.Pending = slices.DeleteFunc(s.Pending, func(p runnerscripts.PermissionRequest) bool { return p.ID == id })
	s.hostRequests = slices.DeleteFunc(s.hostRequests, func(h string) bool { return h == id })
}

func (e *EnvironmentState) apply(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeEnvironmentCreating, runnerscripts.TypeEnvironmentReady:
		p, ok := decode[runnerscripts.EnvironmentInfo](ev)
		if !ok {
			return
		}
		e.ID, e.Message = p.ID, p.Message
		setIf(&e.Backend, p.Backend)
		e.Status, e.creating = EnvironmentCreating, ev.Time.Round(0).UTC()
		if ev.Type == runnerscripts.TypeEnvironmentReady {
			e.Status, e.Isolation, e.Workspace = EnvironmentReady, p.Isolation, p.Workspace
			e.Starts++
			e.readySeq = ev.Seq
		}
	case runnerscripts.TypeEnvironmentError:
		p, _ := decode[runnerscripts.ErrorInfo](ev)
		// An error does not end a running sandbox.
		if e.Status == EnvironmentCreating {
			e.Status = EnvironmentError
		}
		e.Message = p.Message
	case runnerscripts.TypeEnvironmentTerminated:
		p, _ := decode[runnerscripts.EnvironmentTerminated](ev)
		e.Status, e.Message = EnvironmentTerminated, p.Reason
	}
}

func setIf[T comparable](dst *T, v T) {
	var zero T
	if v != zero {
		*dst = v
	}
}

func mainConversation(ev runnerscripts.Event) bool {
	return ev.ConversationID == "" || ev.ConversationID == runnerscripts.MainConversation
}
