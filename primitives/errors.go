package primitives

import (
	"errors"
	"strconv"
)

// These errors say what went wrong. The standard sentinels are used too, with their usual
// meaning: fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid (a request that makes
// no sense on any backend), os.ErrProcessDone, errors.ErrUnsupported, and the errors of a
// context.
var (
	// ErrTerminated: the sandbox was ended by Terminate.
	ErrTerminated = errors.New("sandbox is terminated")
	// ErrUnavailable: the sandbox or the connection to it has died, or this handle was closed.
	ErrUnavailable = errors.New("sandbox is unavailable")
	// ErrPathEscape: a relative path leads out of the workspace. Use an
	// absolute path to name a file outside it.
	ErrPathEscape = errors.New("path leads out of the workspace")
	// ErrWorkingDir: the working directory of a command cannot be entered. The
	// cause is in the chain: fs.ErrNotExist, [ErrNotDirectory] or
	// fs.ErrPermission.
	ErrWorkingDir = errors.New("working directory cannot be used")
	// ErrCommandNotFound: the program does not exist, neither at its path nor in PATH. The
	// chain also holds fs.ErrNotExist.
	ErrCommandNotFound = errors.New("command not found")
	// ErrUnknownUser: the sandbox has no such user.
	ErrUnknownUser = errors.New("unknown user")
	// ErrIsDirectory: the operation needs a file and the path is a directory.
	ErrIsDirectory = errors.New("is a directory")
	// ErrNotDirectory: the operation needs a directory and the path, or a part of it, is
	// something else.
	ErrNotDirectory = errors.New("not a directory")
	// ErrNotEmpty: the directory still has entries.
	ErrNotEmpty = errors.New("directory not empty")
	// ErrNotRegular: the path is a FIFO, a socket or a device, which file
	// operations do not touch because they could block for ever.
	ErrNotRegular = errors.New("not a regular file")
	// ErrNoSpace: the disk, the quota or the inodes are used up.
	ErrNoSpace = errors.New("no space left in the sandbox")
	// ErrConflict: the file is not the revision that the write expected.
	ErrConflict = errors.New("file was changed meanwhile")
	// ErrLimit: more data than the caller allowed, or more watches than the system allows. The
	// data that fits is returned with the error.
	ErrLimit = errors.New("limit was exceeded")
)

// Error says where an operation failed. Every error of a primitive is an *Error or wraps one.
type Error struct {
	Op      string // the operation in one word: "exec", "open", "watch"
	Backend string // "local", "docker", ...
	Target  string // the path, command or id that was operated on; may be empty
	Err     error  // the cause; never nil
}

// Error returns "backend: op target: cause".
func (e *Error) Error() string {
	s := e.Op
	if e.Backend != "" {
		s = e.Backend + ": " + s
	}
	if e.Target != "" {
		s += " " + quoteTarget(e.Target)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// SettingError reports that a setting of a sandbox makes no sense, or that this kind of sandbox
// does not support it.
type SettingError struct {
	// Setting is the name of the setting in JSON, such as "memory" or "ports[0]": a field of [Spec], else of the provider.
	Setting string
	// Problem says what is wrong with it, and after a semicolon what to do.
	Problem string
	// Err is fs.ErrInvalid or errors.ErrUnsupported, or what is wrong with a path, such as fs.ErrExist.
	Err error
}

// Error returns "error: setting: problem".
func (e *SettingError) Error() string { return e.Err.Error() + ": " + e.Setting + ": " + e.Problem }

// Unwrap returns Err.
func (e *SettingError) Unwrap() error { return e.Err }

// quoteTarget keeps plain names readable and everything else unambiguous, within
// a length that fits a message.
func quoteTarget(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "..."
	}
	if q := strconv.Quote(s); len(q) != len(s)+2 {
		return q
	}
	return s
}
