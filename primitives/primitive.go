package primitives

import (
	"context"
	"iter"
	"slices"
)

// EnvironmentPrimitive is one live sandbox.
//
// The package of a backend creates sandboxes with its New function (local.New, docker.New,
// ...). Its Attach function opens one by its ID, also from another process.
type EnvironmentPrimitive interface {
	Files

	// ID returns the sandbox's stable identity: never empty, the same after
	// Attach, unique among the backend's sandboxes.
	ID() string

	// Paths returns the folders of the sandbox. All of them exist.
	Paths() Paths

	// Capabilities returns what this sandbox can really do, as detected when it was created or
	// attached to. It does not change afterwards.
	Capabilities() Capabilities

	// Exec starts a command and returns once it runs: a nil error means that the program was
	// found and started. The caller must Close the process.
	//
	// ctx covers the life of the process, not only its start: when ctx is done, the whole
	// process tree is ended as [Command].Grace describes, and Wait reports [ReasonCancelled].
	//
	// Errors: fs.ErrInvalid for a command that cannot be expressed (no
	// arguments, a NUL byte), [ErrCommandNotFound], fs.ErrPermission for a file
	// that may not be executed, [ErrWorkingDir] together with its cause,
	// [ErrUnknownUser].
	Exec(ctx context.Context, cmd Command) (Process, error)

	// Watch reports changes below dir, which must be an existing directory. The watch is live
	// when Watch returns: every later change is reported. It ends when ctx is done, when the
	// caller leaves the loop over the events, or with an error in the sequence: fs.ErrNotExist
	// when dir itself was removed, [ErrTerminated], [ErrUnavailable]. Cancelling ctx ends the
	// sequence without an error. The sequence can be used once.
	//
	// Events come in the order in which the changes happened. No change is lost silently: when
	// changes come faster than the caller takes them, the sequence reports [OpOverflow], and
	// then the differences to the earlier events as ordinary events.
	Watch(ctx context.Context, dir string, opts WatchOptions) (iter.Seq2[WatchEvent, error], error)

	// Poll returns the state of the sandbox, without waiting for anything that happens inside
	// it. The error is nil for every state that could be determined; a dead sandbox is a state,
	// not an error.
	Poll(ctx context.Context) (State, error)

	// Terminate ends every process in the sandbox, also those that left their process group or
	// session, and removes what the backend created for it. It returns when both are done. It
	// runs to its end even if ctx is cancelled meanwhile: ctx only bounds the grace period.
	// Terminating again returns an empty report and no error.
	Terminate(ctx context.Context) (TerminateReport, error)

	// Close releases what this handle holds in this program (streams, watches, goroutines) and
	// ends the processes it started that are not durable. The sandbox itself lives on and can
	// be attached to again. Close returns when all of this has ended. It may be called more
	// than once and after Terminate. Later calls of other methods return [ErrUnavailable].
	Close() error
}

// State is the state of a sandbox. The zero value is not a valid state.
type State struct {
	Status Status `json:"status"`
	// Exit says how the sandbox's main process ended. It is set only with [StatusExited].
	Exit ExitStatus `json:"exit,omitzero"`
}

// Status is the state of a sandbox in one word.
type Status string

// The statuses of a sandbox.
const (
	StatusRunning    Status = "running"    // it accepts calls
	StatusPaused     Status = "paused"     // it is frozen, see Pause
	StatusExited     Status = "exited"     // its main process ended by itself
	StatusTerminated Status = "terminated" // it was ended by Terminate
	StatusLost       Status = "lost"       // it has ended; the cause is unknown
)

// Running reports whether the sandbox accepts calls.
func (s State) Running() bool { return s.Status == StatusRunning }

// TerminateReport lists the processes that Terminate found running.
type TerminateReport struct {
	// Killed lists the processes that were alive when Terminate was called, with their
	// descendants, in no particular order.
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
	Forced  bool   `json:"forced,omitempty"`  // it did not exit after the polite signal
}

// Capabilities says what one sandbox can do. The zero value can do nothing beyond the required
// parts of the contract.
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
	TreeKill TreeKill `json:"tree_kill"` // how completely the sandbox ends a process tree
	// Isolation is how strongly the backend isolates the sandbox. Nothing in the sandbox can
	// change it.
	Isolation Isolation `json:"isolation"`
	Note      string    `json:"note,omitempty"` // for people: why something is missing
}

// Isolation says how much of the user's machine the programs in a sandbox can reach. The zero
// value means that it is unknown.
type Isolation string

// The isolations, weakest first.
const (
	// IsolationNone: commands are processes of the machine.
	IsolationNone Isolation = "none"
	// IsolationFolders: the sandbox contains folders of the machine that the user has chosen.
	IsolationFolders Isolation = "folders"
	// IsolationFull: the sandbox contains no file of the machine.
	IsolationFull Isolation = "full"
)

// AtLeast reports whether i is as strong as o. It is false if either is unknown.
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
