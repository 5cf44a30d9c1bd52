package environment

import (
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Errors beside those of package primitives.
var (
	// ErrBusy: a query is running, and an environment runs one at a time.
	ErrBusy = query.ErrBusy
	// ErrClosed: the environment was closed.
	ErrClosed = script.ErrClosed
	// ErrNoQuery: no query runs, or none was begun that could be followed.
	ErrNoQuery = query.ErrNone
	// ErrNotPending: the permission request was answered or withdrawn, or never existed.
	ErrNotPending = query.ErrNotPending
	// ErrConfig: the configuration is invalid. The message says where and what to change.
	ErrConfig = configfile.ErrInvalid
	// ErrTrust: a session would continue in a sandbox that is less isolated from this machine,
	// and Config.Trust is not set.
	ErrTrust = errors.New("the session is not trusted there")
	// ErrGit: git is not installed on this machine, or it failed.
	ErrGit = hostgit.ErrFailed
	// ErrBranch: a branch cannot receive the commits of a sandbox. The message says why.
	ErrBranch = hostgit.ErrBranch
	// ErrMerging: the repository of a folder is in a merge, so its history is not copied.
	ErrMerging = hostgit.ErrMerging
)

// ScriptError means that a runner script failed.
type ScriptError = runnerscripts.ScriptError

// QueryError means that a query did not complete. The runnerscripts.TypeQueryFailed event came
// before it. From [Environment.ExecuteQuery] it means that the runner works and the agent
// failed.
type QueryError = runnerscripts.QueryError

// SourceError says which source of the workspace could not be placed.
type SourceError struct {
	// Index is its place in Config.Workspace, from 0.
	Index int
	// Kind is "files", "folder", "git" or "tar", and Name its path or URL,
	// without credentials.
	Kind, Name string
	Err        error

	config string // the configuration file that names it; empty for none
}

// Error names the source and says what happened.
func (e *SourceError) Error() string {
	where := ""
	if e.config != "" {
		where = e.config + ": "
	}
	return fmt.Sprintf("%sworkspace[%d]: %s %q: %v", where, e.Index, e.Kind, e.Name, e.Err)
}

// Unwrap returns what happened.
func (e *SourceError) Unwrap() error { return e.Err }
