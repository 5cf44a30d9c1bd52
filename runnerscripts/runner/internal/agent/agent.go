// Package agent defines the interface between the runner, which speaks the protocol of package
// runnerscripts, and the drivers, one for each agent.
package agent

import (
	"context"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Driver supports one kind of agent. Errors that a user can act on are a
// *runnerscripts.ScriptFailure; all others are reported as FailInternal.
type Driver interface {
	// Recipe returns what the agent needs in a sandbox, at the versions with which the driver
	// was tested.
	Recipe() runnerscripts.Recipe

	// Setup writes what the agent needs into the session's folders and
	// restores the transcript, if there is one. The workspace files are written
	// by the runner. Setup can be called again on the same session.
	Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error)

	// Start makes the agent ready for prompts: a new conversation, or the one
	// that has a transcript. An agent that is not installed is
	// FailAgentMissing with the way to install it. ctx covers the life of the
	// conversation.
	Start(ctx context.Context, req runnerscripts.QueryRequest, out Sink) (Conversation, error)

	// Transcript reads the agent's history; an empty one if there is none yet.
	// With req.Events it also emits the conversation, every event with its
	// recorded time.
	Transcript(ctx context.Context, req runnerscripts.TranscriptRequest, out Sink) (runnerscripts.Transcript, error)

	// Replay emits the conversation of a transcript of this agent, every event with its
	// recorded time. The session may belong to another agent that will continue it: Replay uses
	// only its paths.
	Replay(ctx context.Context, s runnerscripts.Session, t runnerscripts.Transcript, out Sink) error
}

// Unasking is a [Driver] whose agent has tools about whose calls it does not ask, or not always.
type Unasking interface {
	// Unasked returns the names in rules of these tools, by the agent's own names. It does not offer to its model
	// those that Profile.DeniedTools names.
	Unasked() map[string]string
}

// OwnNames returns names for Unasked that are the same in rules.
func OwnNames(names ...string) map[string]string {
	all := make(map[string]string, len(names))
	for _, name := range names {
		all[name] = name
	}
	return all
}

// Withheld returns the denied tools of a profile and those of the agent's own that the host's rules deny.
func Withheld(d Driver, s runnerscripts.Session, p runnerscripts.Profile) []string {
	u, ok := d.(Unasking)
	if !ok {
		return p.DeniedTools
	}
	all := slices.Clone(p.DeniedTools)
	of := u.Unasked()
	for _, own := range slices.Sorted(maps.Keys(of)) {
		denied := func(pattern string) bool {
			matches, err := path.Match(pattern, of[own]) // the names have no other special characters
			return matches && err == nil
		}
		if slices.ContainsFunc(s.Denies, denied) && !slices.Contains(all, own) {
			all = append(all, own)
		}
	}
	return all
}

// Conversation is a started agent. Prompt is called once at a time; the other
// methods may be called at any time, also while Prompt runs.
type Conversation interface {
	// Prompt runs one query to its end and emits what happens, the user's own message included, which
	// has an empty Content.Data for an image. The recipe accepts the attachments. Prompt
	// returns how the query ended; an interrupted one is StopCancelled, not an error. The runner
	// emits query_started, query_completed and query_failed around it. After an error that is a
	// ScriptFailure the conversation can continue, unless its code is FailAgent.
	Prompt(ctx context.Context, id, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error)

	// Interrupt stops the running query and returns without waiting for its
	// end. Without a running query it does nothing.
	Interrupt(ctx context.Context) error

	// Respond answers an emitted permission request. An ID that is not pending is
	// FailInvalidRequest.
	Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error

	// SetMode and SetModel change the permission mode and the model from the
	// next model turn on.
	SetMode(ctx context.Context, mode string) error
	SetModel(ctx context.Context, model string) error

	// Close ends the agent, politely first, and returns when all its processes
	// and goroutines have ended.
	Close() error
}

// OutputBinder is a [Conversation] whose agent can be bound to a JSON schema.
type OutputBinder interface {
	// BindOutput binds the output of later prompts to a schema, and frees it with an empty one. It reports
	// whether the agent is bound: false for a schema that it does not take, which must be asked for in words. It is
	// called between prompts. The output is QueryCompleted.ResultData or, without that, the last message.
	BindOutput(schema json.RawMessage) bool
}

// Sink receives events. It fills in session, query and source. It may be called from several
// goroutines, and blocks while the reader is slow.
type Sink interface {
	// Emit reports an event that happens now.
	Emit(conversation string, typ runnerscripts.EventType, payload any)
	// EmitAt reports an event that happened at another time.
	EmitAt(at time.Time, conversation string, typ runnerscripts.EventType, payload any)
}
