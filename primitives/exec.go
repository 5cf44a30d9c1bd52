package primitives

import (
	"context"
	"io"
	"time"
)

// Command says what to run. Only Args is required.
type Command struct {
	// Args is the program and its arguments; never a shell string. A program
	// without a slash is looked up in the PATH the command itself gets, one
	// with a slash is relative to Dir. Any bytes but NUL may stand in an
	// argument.
	Args []string `json:"args"`

	// Dir is the working directory; empty means the workspace. A relative one
	// is relative to the workspace.
	Dir string `json:"dir,omitempty"`

	// Env is added to the sandbox's own environment, entry by entry, as
	// "KEY=value". The last entry of a key wins. An entry "KEY" without "="
	// removes an inherited variable. The host's environment is not inherited,
	// whatever the backend.
	Env []string `json:"env,omitempty"`

	// User runs the command as a user of the sandbox: a name, a number, or
	// "user:group". Empty means the sandbox's own.
	User string `json:"user,omitempty"`

	// Stdin connects Process.Stdin. Without it the command reads an empty
	// standard input.
	Stdin bool `json:"stdin,omitempty"`

	// MergeStderr sends standard error into standard output, in the order in
	// which both were written. Stderr is then empty.
	MergeStderr bool `json:"merge_stderr,omitempty"`

	// TTY runs the command on a pseudo-terminal of this size, as the leader of
	// a session of its own, with TERM set unless Env sets it. Output is then on
	// Stdout only, with the terminal's line endings; Stdin is connected.
	TTY *TerminalSize `json:"tty,omitempty"`

	// Timeout ends the command's whole process tree after that time, counted
	// in the sandbox. Zero means none.
	Timeout time.Duration `json:"timeout,omitempty"`

	// Grace is how long the processes have to leave after SIGTERM before they
	// are killed, when the context is cancelled, the timeout strikes or the
	// sandbox is terminated. Zero means [DefaultGrace]; negative means kill at
	// once.
	Grace time.Duration `json:"grace,omitempty"`

	// Durable lets the command outlive this program and this handle: its output
	// is kept in the sandbox, and [Reattach] finds it again by Process.ID.
	// Of each stream the first [MaxDurableOutput] bytes are kept; reading further is
	// [ErrLimit], and the command goes on.
	// Cancelling the context only lets go of it. Needs Capabilities.Durable;
	// cannot be combined with TTY or Stdin.
	Durable bool `json:"durable,omitempty"`
}

// MaxDurableOutput is how many bytes are kept of each output stream of a durable command.
const MaxDurableOutput = 256 << 20

// DefaultGrace is the time between the polite signal and the kill.
const DefaultGrace = 2 * time.Second

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Process is a started command. Its streams are independent: a reader of one
// never has to read the other. A command blocks while its output is not read, as on
// any pipe.
type Process interface {
	// ID names the process within its sandbox. For a durable command it is
	// what [Reattach] takes.
	ID() string

	// Stdin writes to the command's standard input. Closing it is the end of
	// input; on a terminal that is the end-of-file character. Writing to a
	// command that has exited or closed its input is an error, never a signal
	// or a hang. Without Command.Stdin every write fails. Close may be called while
	// a write waits for a command that does not read: the write ends with
	// fs.ErrClosed, and what it says it has written is still there to be read.
	Stdin() io.WriteCloser

	// Stdout and Stderr read what the command prints, to io.EOF when every
	// process that holds the stream has closed it. Closing a reader early
	// gives the writers a broken pipe. What was printed before the command exited
	// can be read after Wait returned.
	Stdout() io.ReadCloser
	Stderr() io.ReadCloser

	// Signal sends a signal to the command's process group. After the command
	// has exited it returns os.ErrProcessDone: a process that took over its
	// number is never signalled.
	Signal(ctx context.Context, sig Signal) error

	// Resize changes the terminal's size; errors.ErrUnsupported without one.
	Resize(ctx context.Context, size TerminalSize) error

	// Wait waits for the command itself to exit, not for the ends of its
	// streams. It may be called often and from several goroutines. The error
	// is nil whenever the exit status is known; a non-zero status is not an
	// error. ctx only bounds this waiting.
	Wait(ctx context.Context) (ExitStatus, error)

	// Close ends the command if it still runs (a durable one is only let go
	// of), closes the streams, and returns when that is done. Processes that
	// a finished command left in the background live on until the sandbox is
	// terminated. Closing again does nothing.
	Close() error
}

// ExitStatus is how a command ended. It is data: no exit status is an error.
type ExitStatus struct {
	// Code is the exit code, or 128 plus the signal's number.
	Code int `json:"code"`
	// Signal is the signal that ended the command, if one did.
	Signal Signal `json:"signal,omitempty"`
	// Reason is why it ended. A command that ignores SIGTERM and exits with 0
	// within the grace of a timeout ended because of the timeout.
	Reason ExitReason `json:"reason"`
}

// Success reports whether the command exited by itself with code 0.
func (s ExitStatus) Success() bool { return s.Reason == ReasonExited && s.Code == 0 }

// ExitReason is why a command ended.
type ExitReason string

// The reasons.
const (
	ReasonExited    ExitReason = "exited"    // by itself, with a code
	ReasonSignaled  ExitReason = "signaled"  // by a signal that this program did not ask for through a deadline
	ReasonTimeout   ExitReason = "timeout"   // Command.Timeout struck
	ReasonCancelled ExitReason = "cancelled" // the context was cancelled, the process closed or the sandbox terminated
	ReasonOOM       ExitReason = "oom"       // the sandbox ran out of memory
	ReasonLost      ExitReason = "lost"      // it is gone; the cause is unknown
)

// Signal is a Unix signal by name, without "SIG": numbers differ between the
// host's and the sandbox's system.
type Signal string

// The signals that are commonly sent. Others may be given by name.
const (
	SIGHUP  Signal = "HUP"
	SIGINT  Signal = "INT"
	SIGQUIT Signal = "QUIT"
	SIGKILL Signal = "KILL"
	SIGTERM Signal = "TERM"
	SIGUSR1 Signal = "USR1"
	SIGUSR2 Signal = "USR2"
	SIGSTOP Signal = "STOP"
	SIGCONT Signal = "CONT"
)

// Offset is a position in the kept output of a durable command, in bytes.
type Offset struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
	// NoFollow ends the streams of [Reattach] where they end at the time of the
	// call, also when the command goes on.
	NoFollow bool `json:"no_follow,omitempty"`
}
