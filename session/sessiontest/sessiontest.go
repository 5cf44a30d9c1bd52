// Package sessiontest is the contract of a session as its caller sees it: in this program, and behind a server. A case is a
// rule. It is for authors of servers and clients.
//
// The agent is the scripted one, in a sandbox of this machine, so a run needs no key, no network and no engine.
package sessiontest

import (
	"context"
	"io"
	"iter"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Session is what a caller uses of a session. Its methods promise what those of session.AgentSession do.
type Session interface {
	ID() string
	State(ctx context.Context) (session.State, error)
	Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (Turn, error)
	PromptQuery(ctx context.Context, q environment.Query) (Turn, error)
	PromptOnce(ctx context.Context, q environment.Query) (Turn, error)
	Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error]
	Interrupt(ctx context.Context) error
	Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error
	SetOptions(ctx context.Context, o session.Options) error
	Files(ctx context.Context, opts environment.FilesOptions) ([]environment.WorkspaceFile, error)
	OpenFile(ctx context.Context, name string) (io.ReadCloser, error)
	Sync(ctx context.Context) (session.Checkpoint, error)
	Changes(ctx context.Context, from, to int) ([]environment.Change, error)
	Patch(ctx context.Context, w io.Writer, from, to int) error
	WriteWorkspace(ctx context.Context, r io.Reader) error
	Rewind(ctx context.Context, number int) error
	Fork(ctx context.Context, n int) ([]Session, error)
	ForkFrom(ctx context.Context, number, n int) ([]Session, error)
	Transcript(ctx context.Context) (runnerscripts.Transcript, error)
	TerminateEnvironment(ctx context.Context) error
	Destroy(ctx context.Context) error
}

// Turn is an accepted prompt, as session.Turn.
type Turn interface {
	ID() string
	Events(ctx context.Context) iter.Seq2[runnerscripts.Event, error]
	Wait(ctx context.Context) (runnerscripts.QueryCompleted, error)
	Interrupt(ctx context.Context) error
}

// Host opens sessions, as session.Host.
type Host interface {
	Create(ctx context.Context, cfg session.Config) (Session, error)
	// Open returns the session with an ID, also if it is not open.
	Open(ctx context.Context, id string) (Session, error)
	// Unload closes a session. It stays stored.
	Unload(ctx context.Context, id string) error
	List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error]
}

// Harness has what a run needs.
type Harness struct {
	// Open returns a host without sessions for one test, and cleans up with t.Cleanup.
	Open func(t *testing.T) Host
	// Environment is the sandbox and runner of the sessions of one test; the suite sets the agent. Run calls it before Open.
	Environment func(t *testing.T) environment.Config
}

// Run checks sessions against the contract, one subtest for each rule. The rules run side by side.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env := h.Environment(t) // first, so that its folder is removed after the host has ended
			c.check(&run{T: t, env: env, host: h.Open(t)})
		})
	}
}

// rule is one rule of the contract.
type rule struct {
	name  string
	check func(*run)
}

var cases = []rule{
	{"Prompt/the agent's answer comes between acceptance and end", promptAnswer},
	{"Prompt/prompts run one after the other, in their order", promptOrder},
	{"Prompt/an empty one is refused and leaves no event", promptEmpty},
	{"Prompt/the agent gets the attachments and the session names them", promptAttachments},
	{"Prompt/what the agent does not accept is refused and leaves no event", promptUnaccepted},
	{"Prompt/an output schema holds for its query, which says it", promptSchema},
	{"Prompt/a query that is the session's to decide is refused and leaves no event", promptOwn},
	{"Prompt/more than may wait are refused", promptFull},
	{"Prompt/one that came while another runs is refused on demand", promptBusy},
	{"Prompt/the context covers the acceptance alone", promptContext},
	{"PromptOnce/one that is sent again is the query of before, in each of its states", onceAgain},
	{"PromptOnce/another prompt under its ID is refused and leaves no event", onceOther},
	{"Turn/its events can be read again after its end", turnAgain},
	{"Turn/the events of other queries are not among its own", turnOwn},
	{"Turn/a failed query is a QueryError with the agent's words", turnFailed},
	{"Turn/a caller that waits no longer leaves the query alone", turnWait},
	{"Events/they are numbered from 1 without a gap", eventsNumbers},
	{"Events/they start where asked, also in what has not happened", eventsFrom},
	{"Events/several readers get the same", eventsReaders},
	{"Events/a slow reader misses nothing and holds nobody up", eventsSlow},
	{"Events/they end with the context and with the session", eventsEnd},
	{"State/it is the fold of the events", stateFold},
	{"Interrupt/the running query is cancelled and the next one runs", interruptRunning},
	{"Interrupt/a queued prompt is withdrawn alone", interruptQueued},
	{"Interrupt/without a query nothing happens", interruptIdle},
	{"Respond/an allowed tool runs, and a rejected one does not", respondBoth},
	{"Respond/the first answer counts", respondFirst},
	{"Respond/an answer to nothing is ErrNotPending", respondNothing},
	{"Respond/a decision that was not offered leaves the request open", respondInvalid},
	{"Respond/an interrupt withdraws the request", respondInterrupted},
	{"SetOptions/later queries have them, in new sandboxes too", optionsLater},
	{"SetOptions/none at all is refused", optionsNone},
	{"Files/they are those of the workspace", files},
	{"Files/without a sandbox it is ErrNoEnvironment", filesNone},
	{"Files/one that does not exist is fs.ErrNotExist", filesMissing},
	{"WriteWorkspace/the agent begins with these files alone", writeWorkspace},
	{"WriteWorkspace/other files, a used session and no archive are refused", writeWorkspaceRefused},
	{"Sync/it makes a checkpoint of what is there now", syncNow},
	{"Changes/they are what lies between two checkpoints", changes},
	{"Changes/an unknown checkpoint is fs.ErrNotExist", changesUnknown},
	{"Rewind/the agent goes on from there, and nothing is lost", rewind},
	{"Rewind/while a query runs it is ErrBusy", rewindBusy},
	{"Fork/copies remember and are apart from then on", fork},
	{"Fork/a copy can begin at a checkpoint", forkFrom},
	{"Fork/fewer than one is refused", forkNone},
	{"Transcript/it is the agent's own history", transcript},
	{"TerminateEnvironment/the agent goes on in a new sandbox", terminate},
	{"Unload/a session that is opened again has all of it", unload},
	{"Open/all callers share one session", openShared},
	{"Open/an unknown session is ErrNotFound", openUnknown},
	{"List/it has the sessions and what they say of themselves", list},
	{"Destroy/nothing is left", destroy},
}
