package primitives

import (
	"context"
	"iter"
	"slices"
)

// EnvironmentPrimitive is one live sandbox.
//
// Implementations are made by their own package (local.New, docker.New, ...)
// and found again from another process by its Attach function and ID.
type EnvironmentPrimitive interface {
	Files

	// ID returns the sandbox's stable identity: never empty, the same after
	// Attach, unique among the backend's sandboxes.
	ID() string

	// Paths returns where the sandbox keeps its folders. All of them exist.
	Paths() Paths

	// Capabilities returns what this sandbox can really do, as found when it
	// was created or attached to. It does not change afterwards.
	Capabilities() Capabilities

	// Exec starts a command and returns once it runs: a nil error means that
	// the program was found and started. The caller must Close the process.
	//
	// ctx covers the life of the process, not only its start: when ctx is
	// done the whole process tree is ended by the ladder described at
	// [Command].Grace, and Wait reports [ReasonCancelled].
	//
	// Errors: fs.ErrInvalid for a command that cannot be expressed (no
	// arguments, a NUL byte), [ErrCommandNotFound], fs.ErrPermission for a file
	// that may not be executed, [ErrWorkingDir] together with its cause,
	// [ErrUnknownUser].
	Exec(ctx context.Context, cmd Command) (Process, error)

	// Watch reports changes below dir, which must be an existing directory.
	// The watch is live when Watch returns: a change made after that is
	// reported. It ends when ctx is done, when the loop over the events is
	// left, or with an error in the sequence: fs.ErrNotExist when dir itself
	// went away, [ErrTerminated], [ErrUnavailable]. Cancelling ctx ends the
	// sequence without an error. The sequence can be used once.
	//
	// Events come in the order in which the changes happened. Nothing is lost
	// in silence: when changes come faster than they are taken, [OpOverflow]
	// is reported and the difference to what was reported before follows as
	// ordinary events.
	Watch(ctx context.Context, dir string, opts WatchOptions) (iter.Seq2[WatchEvent, error], error)

	// Poll says whether the sandbox lives, without waiting for anything that
	// happens inside it. The error is nil for every state that could be
	// determined; a dead sandbox is a state, not an error.
	Poll(ctx context.Context) (State, error)

	// Terminate ends every process in the sandbox, those that left their
	// process group or session included, removes what the backend made for it,
	// and returns when that is true. It runs to its end even if ctx is
	// cancelled in between: ctx only bounds the polite part. Terminating again
	// returns an empty report and no error.
	Terminate(ctx context.Context) (TerminateReport, error)

	// Close releases what this handle holds in this program (streams,
	// watches, goroutines) and ends the processes it started that are not
	// durable. The sandbox itself lives on and can be attached to again. It
	// returns after all has ended, and may be called more than once and after
	// Terminate. Later calls of other methods return [ErrUnavailable].
	Close() error
}

// State says whether a sandbox lives. The zero value is not a valid state.
type State struct {
	Status Status `json:"status"`
	// Exit is how the sandbox's own main process ended; only with
	// [StatusExited].
	Exit ExitStatus `json:"exit,omitzero"`
}

// Status is the life of a sandbox in one word.
type Status string

// The statuses.
const (
	StatusRunning    Status = "running"    // it takes calls
	StatusPaused     Status = "paused"     // it is frozen, see Pause
	StatusExited     Status = "exited"     // its main process ended by itself
	StatusTerminated Status = "terminated" // it was ended by Terminate
	StatusLost       Status = "lost"       // it is gone; the cause is unknown
)

// Running reports whether the sandbox takes calls.
func (s State) Running() bool { return s.Status == StatusRunning }

// TerminateReport says what Terminate found still running.
type TerminateReport struct {
	// Killed lists the processes that were alive when Terminate was called,
	// leaders and their descendants, in no particular order.
	Killed []KilledProcess `json:"killed,omitempty"`
	// Survivors lists processes that could not be ended, for example one in
	// an uninterruptible system call. Terminate returns an error if there are
	// any.
	Survivors []KilledProcess `json:"survivors,omitempty"`
}

// KilledProcess is a process that Terminate ended or tried to end.
type KilledProcess struct {
	PID     int    `json:"pid"`
	Command string `json:"command,omitempty"` // its name, without arguments: those may hold secrets
	Forced  bool   `json:"forced,omitempty"`  // it did not leave when asked politely
}

// Capabilities is what one sandbox can do. The zero value can do nothing beyond
// the contract's required parts.
type Capabilities struct {
	OS       string   `json:"os"`        // as in runtime.GOOS
	Arch     string   `json:"arch"`      // as in runtime.GOARCH
	Durable  bool     `json:"durable"`   // Command.Durable and Reattach
	Users    bool     `json:"users"`     // Command.User other than the sandbox's own
	Snapshot bool     `json:"snapshot"`  // Snapshot
	Fork     bool     `json:"fork"`      // Fork
	Pause    bool     `json:"pause"`     // Pause and Resume
	Usage    bool     `json:"usage"`     // ReadUsage
	Forward  bool     `json:"forward"`   // Listen and Dial
	TreeKill TreeKill `json:"tree_kill"` // how completely a process tree is ended
	// Isolation is what the backend keeps from the sandbox; nothing in the sandbox
	// has a say in it.
	Isolation Isolation `json:"isolation"`
	Note      string    `json:"note,omitempty"` // for people: why something is missing
}

// Isolation says what of its user's machine is within reach of what runs in a
// sandbox. The zero value says nothing.
type Isolation string

// The isolations, weakest first.
const (
	// IsolationNone: commands are processes of the machine.
	IsolationNone Isolation = "none"
	// IsolationFolders: folders of the machine that the user has chosen are in the
	// sandbox.
	IsolationFolders Isolation = "folders"
	// IsolationFull: no file of the machine is in the sandbox.
	IsolationFull Isolation = "full"
)

// AtLeast reports whether i is as strong as o. What says nothing is neither as strong
// as anything, nor is anything as strong as it.
func (i Isolation) AtLeast(o Isolation) bool {
	order := []Isolation{IsolationNone, IsolationFolders, IsolationFull}
	weaker := slices.Index(order, o)
	return weaker >= 0 && slices.Index(order, i) >= weaker
}

// TreeKill says how a sandbox finds the processes that it must end.
type TreeKill string

// The ways to end a process tree, strongest first.
const (
	// TreeKillNamespace: the kernel ends everything with the sandbox's first
	// process.
	TreeKillNamespace TreeKill = "namespace"
	// TreeKillCgroup: the kernel keeps the list and ends it at once.
	TreeKillCgroup TreeKill = "cgroup"
	// TreeKillSweep: processes are found by descent and by a mark in their
	// environment; one that wipes its environment, leaves its session and is
	// orphaned can escape.
	TreeKillSweep TreeKill = "sweep"
	// TreeKillGroup: only the process group is ended.
	TreeKillGroup TreeKill = "group"
)
