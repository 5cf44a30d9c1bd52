package primitives

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Command describes a command to run. Only Args is required.
type Command struct {
	// Args is the program and its arguments; never a shell string. A program without a slash is
	// looked up in the PATH of the command itself; a program with a slash is relative to Dir.
	// An argument may contain any byte but NUL.
	Args []string `json:"args"`

	// Dir is the working directory; empty means the workspace. A relative path is relative to
	// the workspace.
	Dir string `json:"dir,omitempty"`

	// Env is added to the sandbox's own environment, entry by entry, as
	// "KEY=value". The last entry of a key wins. An entry "KEY" without "="
	// removes an inherited variable. The host's environment is not inherited,
	// whatever the backend.
	Env []string `json:"env,omitempty"`

	// User runs the command as a user of the sandbox: a name, a number, or "user:group". Empty
	// means the sandbox's own user.
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

	// Timeout ends the command's whole process tree after this time, measured in the sandbox.
	// Zero means no timeout.
	Timeout time.Duration `json:"timeout,omitempty"`

	// Grace is the grace period: how long the processes may run after SIGTERM before they are
	// killed, when the context is cancelled, the timeout expires or the sandbox is terminated.
	// Zero means [DefaultGrace]; negative means kill at once.
	Grace time.Duration `json:"grace,omitempty"`

	// Durable lets the command outlive this program and this handle: the sandbox keeps its
	// output, and [Reattach] finds it by Process.ID. The first [MaxDurableOutput] bytes of each
	// stream are kept; reading further returns [ErrLimit], and the command continues.
	// Cancelling the context only detaches from the command. Durable needs Capabilities.Durable
	// and cannot be combined with TTY or Stdin.
	Durable bool `json:"durable,omitempty"`
}

// MaxDurableOutput is how many bytes of each output stream of a durable command are kept.
const MaxDurableOutput = 256 << 20

// DefaultGrace is the default grace period: the time between the polite signal and the kill.
const DefaultGrace = 2 * time.Second

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Process is a started command. Its streams are independent: reading one never requires reading
// the other. A command blocks while its output is not read, as on any pipe.
type Process interface {
	// ID identifies the process within its sandbox. [Reattach] takes the ID of a durable
	// command.
	ID() string

	// Stdin writes to the command's standard input. Closing it is the end of input; on a
	// terminal that is the end-of-file character. Writing to a command that has exited or
	// closed its input is an error, never a signal or a hang. Without Command.Stdin every write
	// fails. Close may be called while a write waits for a command that does not read: the
	// write returns fs.ErrClosed, and the command can still read the bytes that the write
	// counted as written.
	Stdin() io.WriteCloser

	// Stdout and Stderr return readers of the command's output. A reader returns io.EOF when
	// every process that holds the stream has closed it. Closing a reader early gives the
	// writers a broken pipe. Output written before the command exited can be read after Wait
	// has returned. A command that writes more than its streams hold waits for its reader: they
	// hold at least 4096 bytes each, and usually more.
	Stdout() io.ReadCloser
	Stderr() io.ReadCloser

	// Signal sends a signal to the command's process group. After the command has exited it
	// returns os.ErrProcessDone: a process that reuses its PID is never signalled.
	Signal(ctx context.Context, sig Signal) error

	// Resize changes the terminal's size. Without a terminal it returns errors.ErrUnsupported.
	Resize(ctx context.Context, size TerminalSize) error

	// Wait waits for the command itself to exit, not for the ends of its streams. It may be
	// called several times and from several goroutines. The error is nil whenever the exit
	// status is known; a non-zero status is not an error. ctx only bounds the waiting.
	Wait(ctx context.Context) (ExitStatus, error)

	// Close ends the command if it still runs (from a durable one it only detaches), closes the
	// streams, and returns when that is done. Background processes of a finished command live
	// on until the sandbox is terminated. Closing again does nothing.
	Close() error
}

// ExitStatus says how a command ended. It is data: no exit status is an error.
type ExitStatus struct {
	// Code is the exit code, or 128 plus the signal's number.
	Code int `json:"code"`
	// Signal is the signal that ended the command, if one did.
	Signal Signal `json:"signal,omitempty"`
	// Reason says why the command ended. A command that ignores SIGTERM and exits with 0 within
	// the grace period of a timeout ended because of the timeout.
	Reason ExitReason `json:"reason"`
}

// Success reports whether the command exited by itself with code 0.
func (s ExitStatus) Success() bool { return s.Reason == ReasonExited && s.Code == 0 }

// String describes the status in words, as in "exited with code 3".
func (s ExitStatus) String() string {
	switch s.Reason {
	case ReasonExited:
		return fmt.Sprintf("exited with code %d", s.Code)
	case ReasonSignaled:
		return "ended by signal " + string(s.Signal)
	case ReasonOOM:
		return "ended because the sandbox ran out of memory; give it more"
	default:
		return "ended: " + string(s.Reason)
	}
}

// ExitReason says why a command ended.
type ExitReason string

// The reasons why a command ends.
const (
	ReasonExited    ExitReason = "exited"    // by itself, with a code
	ReasonSignaled  ExitReason = "signaled"  // by a signal, without a timeout or a cancellation
	ReasonTimeout   ExitReason = "timeout"   // Command.Timeout expired
	ReasonCancelled ExitReason = "cancelled" // the context was cancelled, the process closed or the sandbox terminated
	ReasonOOM       ExitReason = "oom"       // the sandbox ran out of memory
	ReasonNoSpace   ExitReason = "no_space"  // the disk of the sandbox is full: the output of a durable command was not kept
	ReasonLost      ExitReason = "lost"      // the cause is unknown
)

// Signal is the name of a Unix signal, without "SIG". It is a name because the numbers of the
// host's and the sandbox's system differ.
type Signal string

// The most common signals. Other signals may be given by name.
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
	// NoFollow ends the streams of [Reattach] at the end of the output at the time of the call,
	// even if the command still runs.
	NoFollow bool `json:"no_follow,omitempty"`
}
